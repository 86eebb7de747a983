"""Talks to the broker: connections, logs, commits, access rules."""
