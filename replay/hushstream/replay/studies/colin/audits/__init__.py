"""Audits of what collaborative bandits release."""
