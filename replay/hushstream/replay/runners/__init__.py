"""Runs the same machines and the same client in this process, or as workers on a broker."""
