"""P-DAP: vendors recommend one another's items, and share noised blocks of disjoint rewards."""
