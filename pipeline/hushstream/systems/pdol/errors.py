"""Errors of PDOL's stages. No message repeats a value of a record."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class PdolError(HushstreamError):
    """A stage refuses what it was given. The message says what was expected and what was given."""


class BadRows(PdolError):
    """Columns that do not make rows."""


class LeafFull(PdolError):
    """More slots than fit into the leaf, or a release of a leaf that is not full."""


class BadRelease(PdolError):
    """A release that its domain cannot have made."""


class BadGraph(PdolError):
    """A graph that is not connected, or does not exist for this kind and number of nodes."""
