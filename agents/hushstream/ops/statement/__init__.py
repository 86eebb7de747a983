"""The page for a data-protection officer."""
