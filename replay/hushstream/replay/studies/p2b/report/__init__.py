"""What a run of p2b leaves behind: its result as values, its page and pictures, and its lines on a terminal."""
