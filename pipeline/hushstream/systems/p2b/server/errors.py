"""What the aggregation stages refuse."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class AggregationError(HushstreamError):
    """Sums that cannot be added or made into a model; says what was expected and what came."""
