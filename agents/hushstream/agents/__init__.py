"""Runs the roles on Faust: one driver for all kinds of machines, which only moves bytes between logs and machines."""
