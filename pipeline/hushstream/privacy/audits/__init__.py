"""Attacks on mechanisms: distributions of noise, tests of structure, lower bounds on epsilon."""
