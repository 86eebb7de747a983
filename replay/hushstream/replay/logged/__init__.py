"""Logs of another policy: adapters that read them and estimators that judge a new policy on them."""
