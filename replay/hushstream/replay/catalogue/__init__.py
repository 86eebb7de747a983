"""Finds worlds and logs by name, and the commands that play them."""
