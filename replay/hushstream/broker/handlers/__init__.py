"""Answers requests, one function for each kind."""
