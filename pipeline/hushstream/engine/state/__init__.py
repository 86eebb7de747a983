"""The state of a role between two records, declared once."""
