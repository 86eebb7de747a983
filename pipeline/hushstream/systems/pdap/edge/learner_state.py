"""The state of a P-DAP learner in packed form."""

from __future__ import annotations

from collections import deque

from hushstream.engine.deciding_state import (
    MEMORIES,
    PLACE,
    dump_memories,
    dump_place,
    restore_memories,
    restore_place,
)
from hushstream.engine.packed import Form
from hushstream.engine.state_parts import READER, array, record
from hushstream.systems.pdap.edge.learner_base import OpenRow, PdapLearner
from hushstream.systems.pdap.serving import SERVING

_OPEN = record(
    "OpenRow",
    event_id="string",
    decided_ms="long",
    user="string",
    arm="int",
    propensity="long",
    model_version="int",
    cell="long",
    arrival="long",
    shown="boolean",
    other_shown="boolean",
    reward=["null", "double"],
)
FORM = Form.of(
    "a P-DAP learner's state",
    2,
    record(
        "PdapLearnerState",
        **PLACE,
        reader=READER,
        serving=record("Serving", **SERVING),
        open=array(_OPEN),
        **MEMORIES,
    ),
)


def dump(machine: PdapLearner) -> bytes:
    """Pack everything that the next fold depends on."""
    state = {
        **dump_place(machine),
        "reader": machine.models[0].dump(),
        "serving": machine.serving.dump(),
        "open": [{"event_id": event_id, **machine.open[event_id]._asdict()} for _, event_id in machine.due],
        **{name: list(items) for name, items in dump_memories(machine).items()},
    }
    return FORM.write(state)


def restore(machine: PdapLearner, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: damaged, of another partition, deployment or configuration.
        OtherVersion: of another release.
        ForeignJournal: made on another journal.
    """
    state = FORM.read(snapshot)
    restore_place(machine, state)
    machine.models[0].resume(state["reader"])
    machine.serving.load(state["serving"])
    restore_memories(machine, state)
    machine.open, machine.due = {}, deque()
    for item in state["open"]:
        event_id = item.pop("event_id")
        machine.due.append((item["decided_ms"], event_id))
        machine.open[event_id] = OpenRow(**item)
