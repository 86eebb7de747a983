"""The callback that gets the progress of a long run."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called with the steps done, the steps in all, and what is being done."""
