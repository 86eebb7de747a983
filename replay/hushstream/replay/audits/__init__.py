"""Audits: every mechanism, counter and release mode attacked as it runs, and the bounds beside the claims."""
