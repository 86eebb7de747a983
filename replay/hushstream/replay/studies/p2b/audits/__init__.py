"""Audits of what P2B releases."""
