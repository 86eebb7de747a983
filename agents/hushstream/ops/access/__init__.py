"""Who may read and write which topic: rules, what the broker enforces, duties."""
