"""Worlds and logs that BGTplanner is played against."""
