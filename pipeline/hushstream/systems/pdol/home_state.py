"""The state that all homes of records have, in packed form; it holds open slots, so it is as sensitive as the records.

Persons are in it as tags alone, under the nonce of the journal.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol

import numpy as np

from hushstream.engine.epochs import EPOCH, NoiseEpoch
from hushstream.engine.packed import Form
from hushstream.engine.spending import SPENDING, Spending
from hushstream.engine.state_parts import OWNER, Owner, array, dump_owner, record, restore_owner
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.keys import Key
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
_SHARED = {
    **OWNER,
    "position": "long",
    "key_id": "bytes",
    "epoch": EPOCH,
    "sealed_phase": "long",
    "absent": array("int"),
    "events": "bytes",
    "pending": array(_SLOT),
    "past": array(_PAST),
    "persons": "bytes",
    "spent": "bytes",
    "spending": SPENDING,
    "diverged": "boolean",
}
_TAG_BYTES = 16


class Home(Owner, Protocol):
    """A `HomeMachine`, as far as its state is that of all homes."""

    position: int
    ended_phase: int
    absent: set[int]
    epoch: NoiseEpoch
    events: int
    pending: OrderedDict[str, Slot]
    past: BoundedMap[Past]
    spent: dict[bytes, int]
    spending: Spending
    diverged: bool

    @property
    def key(self) -> Key: ...

    def put_key(self, key_id: bytes) -> None: ...


def home_form(what: str, name: str, **own: Any) -> Form:
    """The packed form of a home's state: what all of them hold, and fields of its ``own``."""
    return Form.of(what, 2, record(name, **_SHARED, **own))


def dump(machine: Home) -> dict[str, Any]:
    """The values of the fields that all homes have."""
    return {
        **dump_owner(machine),
        "position": machine.position,
        "key_id": machine.key.key_id,
        "epoch": machine.epoch.dump(),
        "sealed_phase": machine.ended_phase,
        "absent": sorted(machine.absent),
        "events": machine.events.to_bytes(16, "little"),
        "pending": [_slot(event_id, slot) for event_id, slot in machine.pending.items()],
        "past": [{"event_id": event_id, **past._asdict()} for event_id, past in machine.past.items()],
        "persons": b"".join(machine.spent),
        "spent": np.array(list(machine.spent.values()), dtype="<i8").tobytes(),
        "spending": machine.spending.dump(),
        "diverged": machine.diverged,
    }


def restore(machine: Home, state: dict[str, Any]) -> None:
    """Return to dumped values.

    Raises:
        HushstreamError: of another partition, deployment or configuration.
        ForeignJournal: made on another journal.
    """
    restore_owner(machine, state)
    machine.put_key(state["key_id"])
    machine.position, machine.epoch = state["position"], NoiseEpoch(**state["epoch"])
    machine.ended_phase, machine.events = state["sealed_phase"], int.from_bytes(state["events"], "little")
    machine.absent = set(state["absent"])
    _restore_memories(machine, state)
    machine.spending.load(state["spending"])
    machine.diverged = state["diverged"]


def _restore_memories(machine: Home, state: dict[str, Any]) -> None:
    machine.pending = OrderedDict((item["event_id"], _read(item)) for item in state["pending"])
    machine.past = BoundedMap(machine.past.capacity)
    for item in state["past"]:
        machine.past.put(item["event_id"], Past(item["user"], item["predicted"]))
    persons, spent = state["persons"], np.frombuffer(state["spent"], "<i8").tolist()
    tags = [persons[place : place + _TAG_BYTES] for place in range(0, len(persons), _TAG_BYTES)]
    machine.spent = dict(zip(tags, spent, strict=True))


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
