"""Errors of BGTplanner's stages. No message repeats a rating or a value of a slot."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class BgtError(HushstreamError):
    """A stage cannot do this. The message says what was expected and what was given."""


class BadRatings(BgtError):
    """Invalid ratings: unknown items, values off the scale, or columns of different lengths."""


class BadSlots(BgtError):
    """Columns that do not make slots."""


class BadRelease(BgtError):
    """A release that does not belong to the round."""
