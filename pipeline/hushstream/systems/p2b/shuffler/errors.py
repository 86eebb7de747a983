"""Errors of the shuffling stages."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class ShufflingError(HushstreamError):
    """A window or a release that cannot be computed. The message says what was expected and what came, no content."""
