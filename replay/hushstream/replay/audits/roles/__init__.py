"""Attacks on whole roles: on their noise, on forks of their journals, and on the time of their work."""
