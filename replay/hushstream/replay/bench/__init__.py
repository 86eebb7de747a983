"""Benchmarks: figures of the stream on this machine, and their targets."""
