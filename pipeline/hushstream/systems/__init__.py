"""The systems, one package each: its configuration, its roles, and its guarantee."""
