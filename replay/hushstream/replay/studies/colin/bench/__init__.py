"""Benchmarks of collaborative bandits: their kernels, and their workers on a stream."""
