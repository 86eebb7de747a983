"""Logs of another policy: adapters that read them, and estimators that evaluate a new policy on them."""
