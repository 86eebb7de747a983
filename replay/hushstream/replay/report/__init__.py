"""What a run leaves behind: its result as values, and the folder of files and pictures that a person looks at."""
