"""Benchmarks of BGTplanner: its kernels, and its workers on a stream."""
