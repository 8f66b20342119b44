"""Fuzzing: bytes are turned into frames, commands and HTTP requests, and every answer is judged."""
