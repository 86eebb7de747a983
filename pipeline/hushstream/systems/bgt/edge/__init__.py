"""What runs where the ratings are: slots out, predictions of one's own."""
