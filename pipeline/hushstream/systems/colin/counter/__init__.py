"""Collaborative bandits: the trusted counter."""
