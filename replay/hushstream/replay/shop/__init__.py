"""A small web shop over a gateway: simulated visitors teach it, and one clicks beside them in a browser."""
