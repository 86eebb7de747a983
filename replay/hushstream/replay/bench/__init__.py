"""Benchmarks: they measure the stream on this machine, and compare the figures with targets."""
