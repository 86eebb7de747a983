"""Whom a long run tells how far it has come."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Told (done, in all, what is going on)."""
