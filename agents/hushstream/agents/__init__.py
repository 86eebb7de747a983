"""The roles on Faust: one driver for every machine, which only moves bytes between logs and machines."""
