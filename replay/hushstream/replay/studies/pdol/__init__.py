"""PDOL's studies: streams of labelled records over nodes, and learning from them."""
