"""The files that are prepared for a deployment of P2B before it runs, the same for all its workers."""
