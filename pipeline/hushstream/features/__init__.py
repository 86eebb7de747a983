"""Features of a visit, an item or a record: declaration (the same for all systems), values, wire rows and blocks."""
