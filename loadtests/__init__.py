"""Load, memory and timing measurements; never imported by the package."""
