"""How a partition is taken up: journal, snapshots, published states, marks."""
