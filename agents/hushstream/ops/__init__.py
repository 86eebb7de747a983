"""What an operator does with a deployment: its topics, copies of its logs, verify, dead letters, budget."""
