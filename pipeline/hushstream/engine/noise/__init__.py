"""What noise costs and how it is named: epochs, rotation of keys, spending and budgets."""
