"""PDOL: many holders of labelled records learn one linear classifier without showing one another a record."""
