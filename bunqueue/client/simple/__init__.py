"""Simple Mode: a queue and its worker in one object, with what most applications add to them."""
