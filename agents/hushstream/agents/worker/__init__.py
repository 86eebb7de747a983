"""A worker: its settings become an app, a group member, and partitions that it owns."""
