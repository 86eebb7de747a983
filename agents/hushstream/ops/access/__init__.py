"""Access rules: who may read and write which topic, what the broker enforces, and accounts with duties besides the
roles."""
