"""One partition at work: which records make a batch, and the driver that takes it through the protocol."""
