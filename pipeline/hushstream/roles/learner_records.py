"""One user of a learner in packed form: his whole state, or what stays of him when that is given up."""

from __future__ import annotations

from typing import Any

import fastavro

from hushstream.edge.terms import Allowance
from hushstream.roles import packed
from hushstream.roles.state_parts import array, record

STATE, ALLOWANCE = b"\x01", b"\x02"
"""The first byte of a packed user."""

_OPEN = record(
    "Open",
    event_id="string",
    context="bytes",
    arm="int",
    propensity="long",
    model_version="int",
    index="long",
    deadline_ms="long",
    shown_arm="int",
)
_ALLOWED = dict.fromkeys(Allowance._fields, "long")
_AGENT_SCHEMA = fastavro.parse_schema(
    record(
        "Agent",
        line="string",
        learned="boolean",
        state="bytes",
        base_version="int",
        seen_ms="long",
        **_ALLOWED,
        open=array(_OPEN),
        targets=array(record("Target", index="long", slot="int")),
        kept=array(record("Kept", slot="int", context="bytes", arm="int", reward="double")),
    )
)
_ALLOWANCE_SCHEMA = fastavro.parse_schema(record("Allowance", **_ALLOWED))


def pack_agent(dumped: dict[str, Any]) -> bytes:
    """Pack what `EdgeAgent.dump` gave."""
    return STATE + packed.write(dumped, _AGENT_SCHEMA)


def pack_allowance(allowance: Allowance) -> bytes:
    """Pack what stays of a user."""
    return ALLOWANCE + packed.write(allowance._asdict(), _ALLOWANCE_SCHEMA)


def unpack_agent(value: bytes) -> dict[str, Any] | None:
    """What `EdgeAgent.load` takes; None if only his allowance is left.

    Raises:
        HushstreamError: other or damaged bytes.
    """
    return packed.read(value[1:], _AGENT_SCHEMA, "a user's state") if value[:1] == STATE else None


def unpack_allowance(value: bytes) -> Allowance:
    """What stays of a user.

    Raises:
        HushstreamError: other or damaged bytes.
    """
    return Allowance(**packed.read(value[1:], _ALLOWANCE_SCHEMA, "a user's allowance"))
