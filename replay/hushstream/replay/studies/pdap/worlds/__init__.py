"""Worlds and logs that P-DAP is played against."""
