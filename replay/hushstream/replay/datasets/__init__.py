"""The datasets that have names: where they come from, how they are fetched and checked, and what they contain."""
