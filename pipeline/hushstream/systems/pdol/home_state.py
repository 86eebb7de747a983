"""The state that all homes of records have; it holds open slots, so it is as sensitive as the records.

Persons are in it as tags alone, under the nonce of the journal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hushstream.engine.epochs import EPOCH_FIELD
from hushstream.engine.spending import SPENDING
from hushstream.engine.state.declared import (
    Field,
    Several,
    Single,
    State,
    after,
    boolean,
    integer,
    key_in_force,
    own_part,
    owner,
    remembered,
    whole_bytes,
)
from hushstream.engine.state_parts import array, record
from hushstream.systems.pdol.slot import Features, Past, Slot

_SLOT = record(
    "OpenSlot",
    event_id="string",
    node="int",
    user="bytes",
    indices="bytes",
    values="bytes",
    null="boolean",
    label="int",
    said="bytes",
)
_PAST = record("PastRecord", event_id="string", user="bytes", predicted="int")
_TAG_BYTES = 16


def home_state(what: str, name: str, **own: Field) -> State:
    """The declared state of a home: what all of them hold, and fields of its ``own``, which need open noise."""
    return State(what, 2, name, _SHARED, own)


def _pack_spent(role: Any) -> Mapping[str, Any]:
    persons = b"".join(role.spent)
    return {"persons": persons, "spent": np.array(list(role.spent.values()), dtype="<i8").tobytes()}


def _unpack_spent(role: Any, values: Mapping[str, Any]) -> None:
    persons, spent = values["persons"], np.frombuffer(values["spent"], "<i8").tolist()
    tags = [persons[place : place + _TAG_BYTES] for place in range(0, len(persons), _TAG_BYTES)]
    role.spent = dict(zip(tags, spent, strict=True))


def _pack_pending(pending: Mapping[str, Slot]) -> list[dict[str, Any]]:
    return [_slot(event_id, slot) for event_id, slot in pending.items()]


def _unpack_pending(value: Iterable[dict[str, Any]], before: object) -> OrderedDict[str, Slot]:
    return OrderedDict((item["event_id"], _read(item)) for item in value)


def _slot(event_id: str, slot: Slot) -> dict[str, Any]:
    features = slot.features
    return {
        "event_id": event_id,
        "node": slot.node,
        "user": slot.user,
        "indices": b"" if features is None else features.indices.astype("<i4").tobytes(),
        "values": b"" if features is None else features.values.astype("<i8").tobytes(),
        "null": features is None,
        "label": slot.label,
        "said": slot.said,
    }


def _read(item: dict[str, Any]) -> Slot:
    indices = np.frombuffer(item["indices"], "<i4").astype(np.int32)
    values = np.frombuffer(item["values"], "<i8").astype(np.int64)
    features = None if item["null"] else Features(indices, values)
    return Slot(item["node"], item["user"], features, item["label"], item["said"])


_SHARED: Mapping[str, Field] = {
    "chain": owner(),
    "position": integer(),
    "keys": key_in_force(),
    "epoch": EPOCH_FIELD,
    "ended_phase": integer(disk="sealed_phase"),
    "absent": Single(array("int"), sorted, lambda value, _: set(value)),
    "events": whole_bytes(16),
    "pending": Single(array(_SLOT), _pack_pending, _unpack_pending),
    "past": remembered(_PAST, Past),
    "spent": Several({"persons": "bytes", "spent": "bytes"}, _pack_spent, _unpack_spent),
    "spending": own_part(SPENDING),
    "diverged": boolean(),
    "open_noise": after("open_noise"),
}
"""Fields of a state that all homes have."""
