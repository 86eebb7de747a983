"""The roles of record holders."""
