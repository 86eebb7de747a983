"""Metrics of a worker, and garbage collection in small steps."""
