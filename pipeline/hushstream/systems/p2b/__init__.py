"""P2B, private bandits: local learners, one padded slot of a user, noised sums, a shared model to start from."""
