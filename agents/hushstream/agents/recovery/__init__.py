"""Recovers a partition from its journal, snapshots, published states and marks."""
