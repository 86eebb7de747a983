"""What may be asked and told, by the conversation that a system declares."""
