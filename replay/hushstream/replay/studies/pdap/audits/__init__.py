"""Audits of P-DAP: attacks on its mechanism, on forks of its journal, and on the time of its work."""
