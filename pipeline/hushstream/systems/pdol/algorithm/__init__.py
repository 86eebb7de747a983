"""PDOL's computations without roles: gradients, counters, gossip and local learners."""
