"""One user of a learner in packed form: their whole state, or their allowance if the state was deleted."""

from __future__ import annotations

import struct
from typing import Any

from hushstream.engine.state.packed import Form
from hushstream.engine.state.parts import array, record
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.terms import Allowance

STATE, ALLOWANCE, FEATURE_STATE, RENEWED = b"\x01", b"\x02", b"\x03", b"\x04"
"""The first byte of a packed user. `RENEWED` is followed by when slots are renewed, and then by a packed user."""

_RENEWAL = struct.Struct("<qq")
_NO_RENEWAL = {"first": Allowance().first, "renews_ms": Allowance().renews_ms}

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
_ALLOWED = dict.fromkeys([name for name in Allowance._fields if name not in _NO_RENEWAL], "long")
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
    """Pack the values of `EdgeAgent.dump`."""
    form, tag = (_FEATURE_AGENT, FEATURE_STATE) if "candidates" in dumped else (_AGENT, STATE)
    renewal, rest = _parted(dumped)
    return renewal + tag + form.write(rest)


def pack_allowance(allowance: Allowance) -> bytes:
    """Pack the allowance of a user whose state was deleted."""
    renewal, rest = _parted(allowance._asdict())
    return renewal + ALLOWANCE + _ALLOWANCE.write(rest)


def unpack_agent(value: bytes) -> dict[str, Any] | None:
    """The values that `EdgeAgent.load` takes; None if only the user's allowance is left.

    Raises:
        HushstreamError: the bytes are others, or damaged.
    """
    renewal, value = _joined(value)
    form = {STATE: _AGENT, FEATURE_STATE: _FEATURE_AGENT}.get(value[:1])
    return None if form is None else {**form.read(value[1:]), **renewal}


def unpack_allowance(value: bytes) -> Allowance:
    """The allowance of a user whose state was deleted.

    Raises:
        HushstreamError: the bytes are others, or damaged.
    """
    renewal, value = _joined(value)
    return Allowance(**_ALLOWANCE.read(value[1:]), **renewal)


def _parted(dumped: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Split the values into the packed prefix that says when slots are renewed, and all others.

    The prefix is empty for users without renewal.
    """
    renewal = {name: dumped[name] for name in _NO_RENEWAL}
    rest = {name: value for name, value in dumped.items() if name not in renewal}
    return b"" if renewal == _NO_RENEWAL else RENEWED + _RENEWAL.pack(*renewal.values()), rest


def _joined(value: bytes) -> tuple[dict[str, int], bytes]:
    if value[:1] != RENEWED:
        return _NO_RENEWAL, value
    if len(value) <= _RENEWAL.size + 1:
        raise HushstreamError(f"a user's state: expected more than {_RENEWAL.size + 1} bytes, got {len(value)}")
    first, renews_ms = _RENEWAL.unpack_from(value, 1)
    return {"first": first, "renews_ms": renews_ms}, value[1 + _RENEWAL.size :]
