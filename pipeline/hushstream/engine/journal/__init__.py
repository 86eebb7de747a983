"""The journal: chain, digests, checkpoints, and the marks that guard its end."""
