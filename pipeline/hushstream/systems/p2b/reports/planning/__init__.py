"""Plans: forecasts of what a deployment will bring, before it runs or from its releases."""
