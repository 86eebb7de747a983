"""A small web shop behind a gateway: simulated visitors teach it, and a person can visit it in a browser."""
