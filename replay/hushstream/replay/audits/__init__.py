"""Audits: they attack every mechanism, counter and release mode, and compare lower bounds with the claims."""
