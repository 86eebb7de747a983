"""What is shown of a worker: metrics, and what it costs to stay responsive."""
