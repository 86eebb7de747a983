"""P2B's roles as journaled machines: each drives the stages of one zone."""
