"""The report of a p2b run: its result as values, a page with pictures, and lines for a terminal."""
