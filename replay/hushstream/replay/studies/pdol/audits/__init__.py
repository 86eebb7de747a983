"""Audits of PDOL: attacks on its mechanism, on forks of its journal, and on the time of its work."""
