"""P-DAP at the edge: the learner role."""
