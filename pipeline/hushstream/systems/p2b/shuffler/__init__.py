"""P2B's shuffler: windows of slots, and the sums that a closed window releases."""
