"""Worlds and logs that PDOL is played against."""
