"""Joining what was shown and rewarded to the decision that it answers."""
