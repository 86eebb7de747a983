"""Checks continuously what a role publishes, while the role runs."""
