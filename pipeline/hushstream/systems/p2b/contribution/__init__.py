"""What a user of P2B contributes: codes of contexts, and padded slots."""
