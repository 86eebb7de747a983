"""One user of a learner in packed form: their whole state, or what stays of them when that is given up."""

from __future__ import annotations

from typing import Any

from hushstream.engine.state.packed import Form
from hushstream.engine.state.parts import array, record
from hushstream.systems.p2b.edge.terms import Allowance

STATE, ALLOWANCE, FEATURE_STATE = b"\x01", b"\x02", b"\x03"
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
_ANSWERED = record(
    "Answered",
    event_id="string",
    arm="int",
    propensity="long",
    model_version="int",
    deadline_ms="long",
)
_ALLOWED = dict.fromkeys(Allowance._fields, "long")
_ANY = {
    "line": "string",
    "learned": "boolean",
    "state": "bytes",
    "base_version": "int",
    "seen_ms": "long",
    **_ALLOWED,
    "open": array(_OPEN),
    "answered": array(_ANSWERED),
}
_AGENT = Form.of(
    "a user's state",
    2,
    record(
        "Agent",
        **_ANY,
        targets=array(record("Target", index="long", slot="int")),
        kept=array(record("Kept", slot="int", context="bytes", arm="int", reward="double")),
    ),
)
_INTERACTION = {"context": "bytes", "arm": "int", "reward": "double"}
_FEATURE_AGENT = Form.of(
    "a user's state with declared features",
    1,
    record(
        "FeatureAgent",
        **_ANY,
        resolved=array(record("Resolved", slot="int", index="long", deadline_ms="long", **_INTERACTION)),
        candidates=array(
            record(
                "Candidates",
                slot="int",
                count="long",
                clicked=array(record("Clicked", **_INTERACTION)),
                drawn=array(record("Drawn", **_INTERACTION)),
            )
        ),
    ),
)
_ALLOWANCE = Form.of("a user's allowance", 1, record("Allowance", **_ALLOWED))


def pack_agent(dumped: dict[str, Any]) -> bytes:
    """Pack what `EdgeAgent.dump` gave."""
    if "candidates" in dumped:
        return FEATURE_STATE + _FEATURE_AGENT.write(dumped)
    return STATE + _AGENT.write(dumped)


def pack_allowance(allowance: Allowance) -> bytes:
    """Pack what stays of a user."""
    return ALLOWANCE + _ALLOWANCE.write(allowance._asdict())


def unpack_agent(value: bytes) -> dict[str, Any] | None:
    """What `EdgeAgent.load` takes; None if only their allowance is left.

    Raises:
        HushstreamError: other or damaged bytes.
    """
    form = {STATE: _AGENT, FEATURE_STATE: _FEATURE_AGENT}.get(value[:1])
    return None if form is None else form.read(value[1:])


def unpack_allowance(value: bytes) -> Allowance:
    """What stays of a user.

    Raises:
        HushstreamError: other or damaged bytes.
    """
    return Allowance(**_ALLOWANCE.read(value[1:]))
