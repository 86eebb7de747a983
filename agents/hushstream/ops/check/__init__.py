"""Whether what was published follows from the logs: `verify`, and its checkpoints and findings."""
