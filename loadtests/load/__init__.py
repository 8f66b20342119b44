"""What the Locust scenarios share: their user, its options, what it reports and counts."""
