"""Studies: for each system its worlds, its closed loop, experiments, audits and benchmark."""
