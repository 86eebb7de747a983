"""Measured figures: what the stream does on this machine, against what it is held to."""
