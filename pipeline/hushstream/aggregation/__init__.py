"""From released sums to a model (server zone)."""
