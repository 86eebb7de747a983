"""What is made of releases: biases, the test for factors, factors, models."""
