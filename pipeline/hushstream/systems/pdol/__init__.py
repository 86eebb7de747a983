"""PDOL: many holders of labelled records learn one linear classifier, and never show one another a record."""
