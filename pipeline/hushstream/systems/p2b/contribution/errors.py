"""What the contribution stages refuse."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class ContributionError(HushstreamError):
    """A context, encoder or setting that cannot be used; says what was expected and what came."""


class BadSlot(ContributionError):
    """Bytes that are no slot content; the message never repeats them."""


class BadReward(ContributionError):
    """A reward that is not a finite number."""
