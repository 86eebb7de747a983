"""What a user of P2B contributes: an encoded interaction in a padded slot."""
