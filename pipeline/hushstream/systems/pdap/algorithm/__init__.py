"""P-DAP's computations without roles: blocks, partition, beliefs and tickets."""
