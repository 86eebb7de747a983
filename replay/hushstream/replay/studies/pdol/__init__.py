"""Studies of PDOL: streams of labelled records over nodes, and learning from them."""
