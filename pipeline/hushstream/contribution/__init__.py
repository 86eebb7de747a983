"""What leaves a user's side: encoded contexts and slots of one size (edge zone)."""
