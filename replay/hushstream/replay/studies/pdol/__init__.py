"""PDOL's studies: streams of labelled records over nodes, and what is learned from them."""
