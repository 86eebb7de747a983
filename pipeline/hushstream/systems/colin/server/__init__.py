"""Collaborative bandits: the aggregator."""
