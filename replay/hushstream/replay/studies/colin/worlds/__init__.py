"""Worlds of related users."""
