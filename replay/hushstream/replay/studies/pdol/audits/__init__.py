"""Audits of PDOL: attacks on its mechanism, on its journal's forks and on the work that it does."""
