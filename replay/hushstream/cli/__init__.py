"""The ``hushstream`` command line; no other package imports it."""
