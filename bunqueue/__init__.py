"""A job queue in one process and one file: nothing lost, and you can see it."""

__version__ = "0.1.0"
