"""The collector: it adds up the slots of a round, and releases the sums with noise, once."""
