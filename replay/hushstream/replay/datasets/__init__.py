"""The datasets that can be named: where they come from, how they are checked and fetched, what is in them."""
