"""A device of P2B: its agreement, the slots that it owes, and the models that it takes."""
