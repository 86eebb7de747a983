"""Errors of the aggregation stages."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class AggregationError(HushstreamError):
    """Sums that cannot be added or made into a model. The message says what was expected and what came."""
