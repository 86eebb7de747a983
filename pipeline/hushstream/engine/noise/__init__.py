"""Prices and addresses of noise: epochs, key rotation, spending and budgets."""
