"""Commands that play datasets and worlds."""
