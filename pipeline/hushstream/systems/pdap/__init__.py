"""P-DAP: vendors recommend one another's items; what they share is noised blocks of disjoint rewards."""
