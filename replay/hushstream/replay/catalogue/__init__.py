"""What is found by name: worlds, logs, and the commands that play them."""
