"""Benchmarks of P2B: its kernels, and its workers on a stream."""
