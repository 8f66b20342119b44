"""One scenario a file; the first line of its class is the question that it answers."""
