"""One module per system: which stages, in which order, with which guarantee."""
