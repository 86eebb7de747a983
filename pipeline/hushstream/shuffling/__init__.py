"""Windows of slots and what the shuffler releases from them (shuffler zone)."""
