"""The edge: slots are made from a user's ratings, and predictions for this user."""
