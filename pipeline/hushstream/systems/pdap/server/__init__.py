"""P-DAP at the server: the aggregator role."""
