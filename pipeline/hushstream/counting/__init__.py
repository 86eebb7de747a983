"""Continual-release counters: noised prefix sums of a stream of integer vectors."""
