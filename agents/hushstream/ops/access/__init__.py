"""Access rules: who may read and write which topic, what the broker enforces, and duties beside the roles."""
