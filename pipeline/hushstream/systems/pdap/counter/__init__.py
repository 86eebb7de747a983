"""P-DAP: the counters, which alone hold rewards."""
