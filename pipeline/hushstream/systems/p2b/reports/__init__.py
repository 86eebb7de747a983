"""What is said of a deployment: facts beside its guarantee, its lift, what its model prefers."""
