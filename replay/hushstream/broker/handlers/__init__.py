"""What the broker answers, by kind of request."""
