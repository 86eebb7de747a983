"""P2B's shuffler: windows of slots, and what a closed one releases."""
