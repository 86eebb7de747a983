"""Guarantees, keys, keyed integer noise, exact accounting, the ledger and the audits."""
