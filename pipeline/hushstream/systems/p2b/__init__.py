"""P2B, private bandits: local learners, one padded slot for each user, noised sums, a shared model to start from."""
