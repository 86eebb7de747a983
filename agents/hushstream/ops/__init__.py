"""The operator's tools: topics, access rules, copies of the logs, verify, dead letters, budget, statement."""
