"""Serves the protocol of the hosted personaliser that was shut down in October 2026, so that its clients still work."""
