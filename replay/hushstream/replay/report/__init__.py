"""Makes the report of a run: its result as values, and a folder of files and pictures for readers."""
