"""Benchmarks of workers on a stream: latency at a fixed rate, release times, old deployments, scaling, a soak test."""
