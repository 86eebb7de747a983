"""P2B, private bandits: local learners, one fixed-size report of a user, noised sums, a shared model to start from."""
