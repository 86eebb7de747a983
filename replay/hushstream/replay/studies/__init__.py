"""What is studied of each system: worlds, closed loops, experiments, audits, benchmarks."""
