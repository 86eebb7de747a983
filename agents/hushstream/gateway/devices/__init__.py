"""The gateway for users' devices: it relays slots to the shuffler, and serves signed models."""
