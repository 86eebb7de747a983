"""Benchmarks of workers on a stream: pace, release times, long lives, scaling, a soak."""
