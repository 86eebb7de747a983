"""The roles of those who hold records."""
