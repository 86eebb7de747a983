"""Benchmarks of P-DAP: its kernels, and its workers on a stream."""
