"""P2B's roles as journaled machines: each runs the stages of one zone."""
