"""Functions that tell whether a difference is one that is meant; ``rules.py`` names them."""
