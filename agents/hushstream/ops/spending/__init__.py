"""Reads from ledgers how much of the privacy budget was spent."""
