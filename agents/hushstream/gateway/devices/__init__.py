"""Slots of users' devices on their way to the shuffler, and signed models on their way to devices."""
