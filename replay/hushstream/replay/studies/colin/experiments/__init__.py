"""The experiments of collaborative bandits."""
