"""Parts of packed states that more than one role has."""

from __future__ import annotations

from typing import Any


def record(name: str, **fields: Any) -> dict[str, Any]:
    """An Avro record schema from its fields."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def array(items: Any) -> dict[str, Any]:
    """An Avro array schema."""
    return {"type": "array", "items": items}


READER = record(
    "Reader",
    position="long",
    chain="Chain",
    highs=array(record("High", topic="string", partition="int", high="long")),
)
PAST = record(
    "Past",
    event_id="string",
    user="string",
    arm="int",
    propensity="long",
    model_version="int",
    expired="boolean",
)
EARLY_FEEDBACK = record(
    "EarlyOutcome",
    rewarded="boolean",
    event_id="string",
    user="string",
    arm="int",
    reward="double",
    offset="long",
    row="int",
    time_ms="long",
)
