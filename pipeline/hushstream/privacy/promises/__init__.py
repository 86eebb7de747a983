"""Guarantees: the object, its sentences, its page."""
