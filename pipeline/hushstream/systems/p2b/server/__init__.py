"""P2B's server: a model from noised sums."""
