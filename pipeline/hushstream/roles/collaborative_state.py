"""The state of a collaborative learner in packed form."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np

from hushstream.feedback.memory import BoundedMap, ParkedClick, Parking, PastDecision
from hushstream.roles import packed
from hushstream.roles.chain import CHAIN_STATE
from hushstream.roles.collaborative_fold import OpenRow
from hushstream.roles.collaborative_models import SharedParameters
from hushstream.roles.state_parts import PARKED, PAST, READER, array, record
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.roles.collaborative_learner import CollaborativeLearnerMachine

VERSION = 1
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
_SCHEMA = fastavro.parse_schema(
    record(
        "CollaborativeLearnerState",
        version="int",
        deployment="string",
        config_digest="bytes",
        partition="int",
        chain=CHAIN_STATE,
        contexts="long",
        clicks="long",
        now_ms="long",
        last_click_ms="long",
        reader=READER,
        model_version="int",
        parameters="bytes",
        widths="bytes",
        open=array(_OPEN),
        past=array(PAST),
        parked=array(PARKED),
        taken="bytes",
        leaf="long",
        moments="bytes",
    )
)


def dump(machine: CollaborativeLearnerMachine) -> bytes:
    """Pack everything that the next fold depends on."""
    state = {
        "version": VERSION,
        "deployment": machine.system.config.deployment,
        "config_digest": machine.system.digest,
        "partition": machine.partition,
        "chain": machine.chain.dump(),
        "contexts": machine.read["contexts", machine.partition],
        "clicks": machine.read["clicks", machine.partition],
        "now_ms": machine.now_ms,
        "last_click_ms": machine.last_click_ms,
        "reader": machine.reader.dump(),
        "model_version": machine.shared.version,
        "parameters": machine.shared.parameters.astype("<f8").tobytes(),
        "widths": machine.shared.widths.astype("<f8").tobytes(),
        "open": [_open(machine.open[event_id], event_id, decided_ms) for decided_ms, event_id in machine.due],
        "past": [{"event_id": event_id, **past._asdict()} for event_id, past in machine.past.items()],
        "parked": [click._asdict() for click in machine.parking.all()],
        "taken": machine.taken.astype("<i8").tobytes(),
        "leaf": machine.leaf,
        "moments": b"" if machine.moments is None else machine.moments.dump(),
    }
    return packed.write(state, _SCHEMA)


def restore(machine: CollaborativeLearnerMachine, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: damaged, of another version, partition, deployment or configuration.
        ForeignJournal: made on another journal.
    """
    state = packed.read(snapshot, _SCHEMA, "a collaborative learner's state")
    found = (state["version"], state["partition"], state["deployment"], state["config_digest"])
    expected = (VERSION, machine.partition, machine.system.config.deployment, machine.system.digest)
    if found != expected:
        raise HushstreamError(f"snapshot: expected version, partition and deployment {expected[:3]}, got {found[:3]}")
    machine.chain.resume(state["chain"])
    machine.reader.resume(state["reader"])
    home = machine.partition
    machine.read.update({("contexts", home): state["contexts"], ("clicks", home): state["clicks"]})
    machine.now_ms, machine.last_click_ms = state["now_ms"], state["last_click_ms"]
    machine.taken = np.frombuffer(state["taken"], "<i8").astype(np.int64)
    machine.leaf = state["leaf"]
    _restore_model(machine, state)
    _restore_memories(machine, state)


def _restore_model(machine: CollaborativeLearnerMachine, state: dict[str, Any]) -> None:
    nodes, d = machine.system.nodes, machine.system.features.dimension
    machine.shared = SharedParameters(
        state["model_version"],
        np.frombuffer(state["parameters"], "<f8").reshape(nodes, d).astype(np.float64),
        np.frombuffer(state["widths"], "<f8").reshape(nodes, d, d).astype(np.float64),
    )
    if machine.moments is not None:
        machine.moments = machine.open_moments()
        machine.moments.load(state["moments"])


def _restore_memories(machine: CollaborativeLearnerMachine, state: dict[str, Any]) -> None:
    feedback = machine.system.config.feedback
    machine.open, machine.due = {}, deque()
    for item in state["open"]:
        event_id = item.pop("event_id")
        machine.due.append((item.pop("decided_ms"), event_id))
        machine.open[event_id] = OpenRow(**{**item, "features": np.frombuffer(item["features"], "<f4")})
    machine.past = BoundedMap(feedback.remembered_events)
    for item in state["past"]:
        machine.past.put(item.pop("event_id"), PastDecision(**item))
    machine.parking = Parking(feedback.parked_clicks)
    for item in state["parked"]:
        machine.parking.park(ParkedClick(**item))


def _open(row: OpenRow, event_id: str, decided_ms: int) -> dict[str, Any]:
    return {
        "event_id": event_id,
        "decided_ms": decided_ms,
        **row._asdict(),
        "features": row.features.astype("<f4").tobytes(),
    }
