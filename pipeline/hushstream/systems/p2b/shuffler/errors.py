"""What the shuffling stages refuse."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class ShufflingError(HushstreamError):
    """A window or a release that cannot be computed; says expected and got, never a content."""
