"""A small web shop behind a gateway: it learns from simulated visitors, and a person can visit it in a browser."""
