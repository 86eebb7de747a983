"""Bandit learners: states, and kernels that score, choose and learn (edge zone)."""
