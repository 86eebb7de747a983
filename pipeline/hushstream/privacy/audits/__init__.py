"""Attacks on mechanisms: laws of noise, tests of structure, lower bounds on epsilon."""
