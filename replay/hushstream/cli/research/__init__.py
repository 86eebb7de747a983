"""Commands that replay datasets and simulated worlds."""
