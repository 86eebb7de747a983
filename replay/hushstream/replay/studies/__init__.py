"""What is learned about each system in simulations: worlds, experiments, audits, advice."""
