"""Collaborative bandits: LinUCB, CoLin and GOBLin on continual-release counters."""
