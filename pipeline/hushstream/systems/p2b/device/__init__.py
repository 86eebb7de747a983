"""A device of P2B: what it agreed to, the slots that it owes, and the models that it takes."""
