"""P2B's server: makes a model from noised sums."""
