"""Commands before anything runs: configurations, deployments, what they promise."""
