"""Checking what a role published continuously, while it goes on."""
