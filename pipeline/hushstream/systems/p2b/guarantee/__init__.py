"""What a configuration of P2B sums, promises and costs; and the deployment object that all roles use."""
