"""Studies of P-DAP."""
