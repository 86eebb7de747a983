"""The state of a role: what it holds between two records, declared once."""
