"""The collector: it sums slots of one kind and adds noise, once."""
