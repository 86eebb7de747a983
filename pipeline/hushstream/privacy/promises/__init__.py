"""What a guarantee says: the object, its sentences, its page."""
