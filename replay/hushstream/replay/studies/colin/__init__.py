"""Studies of collaborative bandits."""
