"""Commands for a running deployment."""
