"""The callback that gets the progress of a long run."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Told (done, in all, what is going on)."""
