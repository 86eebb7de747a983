"""Mechanisms that add noise: how they draw, and what they guarantee."""
