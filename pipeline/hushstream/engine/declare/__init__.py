"""What a system declares: topics, roles, requests, outcomes, and the declaration itself."""
