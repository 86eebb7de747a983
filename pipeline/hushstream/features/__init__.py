"""What describes a visit, an item or a record: one declaration for all systems, its values, wire rows and blocks."""
