"""The edge zone: makes slots from a user's ratings, and predictions for this user."""
