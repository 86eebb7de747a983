"""Collaborative bandits at the edge: the learner role."""
