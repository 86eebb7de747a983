"""Commands before anything runs: configurations, deployments, their guarantees."""
