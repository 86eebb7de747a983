"""Errors of the counters. No message repeats a leaf, a sum or noise."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class CountingError(HushstreamError):
    """A counter cannot do this. The message says what was expected and what was given."""


class BadPlan(CountingError):
    """Settings for which no counter exists."""


class BadLeaves(CountingError):
    """Leaves of another type or shape, or so large that a sum could leave 64 bits."""


class HorizonReached(CountingError):
    """More leaves than the counter was calibrated for."""


class BadState(CountingError):
    """A serialised state that is damaged, or of another counter, key or deployment."""
