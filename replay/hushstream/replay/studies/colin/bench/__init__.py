"""Benchmarks of related users: its kernels, and its workers on a stream."""
