"""Errors of the contribution stages."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class ContributionError(HushstreamError):
    """A context, encoder or setting that cannot be used. The message says what was expected and what came."""


class BadSlot(ContributionError):
    """Bytes that are no slot content. The message never repeats them."""


class BadReward(ContributionError):
    """A reward that is not a finite number."""
