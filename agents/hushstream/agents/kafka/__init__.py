"""What is asked of a broker: connections, logs, commits, access rules."""
