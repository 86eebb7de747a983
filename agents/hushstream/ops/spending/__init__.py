"""What was spent, read from ledgers."""
