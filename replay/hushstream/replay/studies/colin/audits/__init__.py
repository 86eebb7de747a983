"""Audits of the releases of collaborative bandits."""
