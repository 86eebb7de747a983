"""What the stages of P-DAP refuse."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class PdapError(HushstreamError):
    """A context, an outcome, a block or a model that does not fit; says what was expected and what came."""


class CellsExhausted(PdapError):
    """A grid is too fine for its cells to be numbered."""
