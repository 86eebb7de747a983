"""PDOL's gradients, counters, gossip and local learners: what is computed, without roles."""
