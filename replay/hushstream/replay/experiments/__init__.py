"""Plays experiments that reproduce the papers' tables and figures, writes their rows, and draws their pictures."""
