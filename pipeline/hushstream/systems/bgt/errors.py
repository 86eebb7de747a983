"""What BGTplanner's stages refuse. No message repeats a rating or a value of a slot."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class BgtError(HushstreamError):
    """A stage was asked for what it cannot do; says what was expected and what came."""


class BadRatings(BgtError):
    """Ratings that are none: unknown items, off the scale, or columns that do not fit."""


class BadSlots(BgtError):
    """Columns that do not make slots."""


class BadRelease(BgtError):
    """A release that does not belong to the round."""
