"""Commands for a deployment that runs."""
