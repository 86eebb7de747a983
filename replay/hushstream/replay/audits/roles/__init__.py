"""Attacks on whole roles: on their noise, their forks and the work that they do."""
