"""Logs as a client reads and writes them: events, journals, batches of records."""
