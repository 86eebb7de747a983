"""The server: makes biases, the test for factors, factors and models from releases."""
