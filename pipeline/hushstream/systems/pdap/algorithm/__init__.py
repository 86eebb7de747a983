"""P-DAP's blocks, partition, beliefs and tickets: what is computed, without roles."""
