"""Reads and writes a deployment's log for a client: appended events, journals of answers, batches of records."""
