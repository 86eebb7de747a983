"""Drafts of a mapping and of features, made from a log for its owner to correct."""
