"""Studies of P2B."""
