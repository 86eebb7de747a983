"""The experiments of P2B."""
