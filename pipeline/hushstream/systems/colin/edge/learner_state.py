"""The state of a collaborative learner in packed form."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from hushstream.engine.deciding_state import (
    MEMORIES,
    PLACE,
    dump_memories,
    dump_place,
    restore_memories,
    restore_place,
)
from hushstream.engine.packed import Form
from hushstream.engine.spending import SPENDING
from hushstream.engine.state_parts import READER, array, record
from hushstream.systems.colin.edge.learner_base import CollaborativeLearner, OpenRow
from hushstream.systems.colin.edge.models import SharedParameters

_OPEN = record(
    "OpenRow",
    event_id="string",
    decided_ms="long",
    node="int",
    arm="int",
    model_version="int",
    features="bytes",
    shown="boolean",
    other_shown="boolean",
    reward=["null", "double"],
)
FORM = Form.of(
    "a collaborative learner's state",
    6,
    record(
        "CollaborativeLearnerState",
        **PLACE,
        reader=READER,
        model_version="int",
        parameters="bytes",
        widths="bytes",
        open=array(_OPEN),
        **MEMORIES,
        taken="bytes",
        leaf="long",
        records="long",
        noised_sums="bytes",
        spending=SPENDING,
    ),
)


def dump(machine: CollaborativeLearner) -> bytes:
    """Pack everything that the next fold depends on."""
    state = {
        **dump_place(machine),
        "reader": machine.models[0].dump(),
        "model_version": machine.shared.version,
        "parameters": machine.shared.parameters.astype("<f8").tobytes(),
        "widths": machine.shared.widths.astype("<f8").tobytes(),
        "open": [_open(machine.open[event_id], event_id) for _, event_id in machine.due],
        **{name: list(items) for name, items in dump_memories(machine).items()},
        "taken": machine.taken.astype("<i8").tobytes(),
        "leaf": machine.leaf,
        "records": machine.records,
        "noised_sums": b"" if machine.noised_sums is None else machine.noised_sums.dump(),
        "spending": machine.spending.dump(),
    }
    return FORM.write(state)


def restore(machine: CollaborativeLearner, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: damaged, of another partition, deployment or configuration.
        OtherVersion: of another release.
        ForeignJournal: made on another journal.
    """
    state = FORM.read(snapshot)
    restore_place(machine, state)
    machine.models[0].resume(state["reader"])
    machine.taken = np.frombuffer(state["taken"], "<i8").astype(np.int64)
    machine.leaf, machine.records = state["leaf"], state["records"]
    machine.spending.load(state["spending"])
    _restore_model(machine, state)
    restore_memories(machine, state)
    _restore_open(machine, state)


def _restore_model(machine: CollaborativeLearner, state: dict[str, Any]) -> None:
    nodes, d = machine.system.nodes, machine.system.features.dimension
    machine.shared = SharedParameters(
        state["model_version"],
        np.frombuffer(state["parameters"], "<f8").reshape(nodes, d).astype(np.float64),
        np.frombuffer(state["widths"], "<f8").reshape(nodes, d, d).astype(np.float64),
    )
    if machine.noised_sums is not None:
        machine.noised_sums = machine.open_noised_sums()
        machine.noised_sums.load(state["noised_sums"])


def _restore_open(machine: CollaborativeLearner, state: dict[str, Any]) -> None:
    machine.open, machine.due = {}, deque()
    for item in state["open"]:
        event_id = item.pop("event_id")
        machine.due.append((item["decided_ms"], event_id))
        machine.open[event_id] = OpenRow(**{**item, "features": np.frombuffer(item["features"], "<f4")})


def _open(row: OpenRow, event_id: str) -> dict[str, Any]:
    return {"event_id": event_id, **row._asdict(), "features": row.features.astype("<f4").tobytes()}
