"""P-DAP: the counters. No other role holds rewards."""
