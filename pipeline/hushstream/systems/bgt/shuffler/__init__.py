"""The collector: it adds up slots of one kind and adds noise, once."""
