"""What PDOL's stages refuse. No message repeats a value of a record."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class PdolError(HushstreamError):
    """A stage was asked for what it cannot do; says what was expected and what came."""


class BadRows(PdolError):
    """Columns that do not make rows."""


class LeafFull(PdolError):
    """More slots than the leaf has room for, or a release of a leaf that is not full."""


class BadRelease(PdolError):
    """A release that its domain cannot have made."""


class BadGraph(PdolError):
    """A graph over which parameters do not reach everyone, or none of the asked kind."""
