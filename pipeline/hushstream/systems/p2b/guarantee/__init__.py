"""What a configuration of P2B sums, promises and costs, and a deployment that keeps to it."""
