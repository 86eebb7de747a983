"""Benchmarks of PDOL: its kernels, and its workers on a stream."""
