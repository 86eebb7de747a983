"""Named datasets: where they come from, how they are fetched and checked, and what they contain."""
