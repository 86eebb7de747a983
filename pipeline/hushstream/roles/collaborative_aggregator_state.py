"""The state of a collaborative aggregator in packed form; everything in it was published or is public."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fastavro
import numpy as np

from hushstream.feedback.memory import BoundedMap
from hushstream.roles import packed
from hushstream.roles.chain import CHAIN_STATE
from hushstream.roles.state_parts import record
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.collaborative_rows import parse_rows

if TYPE_CHECKING:
    from hushstream.roles.collaborative_aggregator import CollaborativeAggregatorMachine

VERSION = 1
_SCHEMA = fastavro.parse_schema(
    record(
        "CollaborativeAggregatorState",
        version="int",
        deployment="string",
        config_digest="bytes",
        line="int",
        chain=CHAIN_STATE,
        model_version="int",
        position="long",
        journaled="long",
        running="bytes",
        counts="bytes",
        as_stated="boolean",
        seals={"type": "map", "values": "long"},
        sealed_phase="long",
        known={"type": "array", "items": "string"},
        nodes="bytes",
        features="bytes",
        moment="bytes",
        estimator="bytes",
    )
)


def dump(machine: CollaborativeAggregatorMachine) -> bytes:
    """Pack everything that the next fold depends on."""
    state = {
        "version": VERSION,
        "deployment": machine.system.config.deployment,
        "config_digest": machine.system.digest,
        "line": machine.line,
        "chain": machine.chain.dump(),
        "model_version": machine.version,
        "position": machine.position,
        "journaled": machine.journaled,
        "running": machine.running,
        "counts": machine.counts.astype("<i8").tobytes(),
        "as_stated": machine.as_stated,
        "seals": {str(origin): phase for origin, phase in machine.seals.by_origin.items()},
        "sealed_phase": machine.seals.complete,
        "known": [identity for identity, _ in machine.known.items()],
        "nodes": b"".join(part.nodes.astype("<i4").tobytes() for part in machine.pending),
        "features": b"".join(part.features.astype("<f4").tobytes() for part in machine.pending),
        "moment": machine.moment.astype("<f8").tobytes(),
        "estimator": machine.estimator.dump(),
    }
    return packed.write(state, _SCHEMA)


def restore(machine: CollaborativeAggregatorMachine, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: damaged, of another version, line, deployment or configuration.
        ForeignJournal: made on another journal.
    """
    state = packed.read(snapshot, _SCHEMA, "a collaborative aggregator's state")
    found = (state["version"], state["line"], state["deployment"], state["config_digest"])
    expected = (VERSION, machine.line, machine.system.config.deployment, machine.system.digest)
    if found != expected:
        raise HushstreamError(f"snapshot: expected version, line, deployment {expected[:3]}, got {found[:3]}")
    machine.chain.resume(state["chain"])
    machine.version, machine.position = state["model_version"], state["position"]
    machine.journaled, machine.running = state["journaled"], state["running"]
    machine.counts = np.frombuffer(state["counts"], "<i8").astype(np.int64)
    machine.as_stated = state["as_stated"]
    machine.seals.by_origin = {int(origin): phase for origin, phase in state["seals"].items()}
    machine.seals.complete = state["sealed_phase"]
    machine.known = BoundedMap(machine.known.capacity)
    for identity in state["known"]:
        machine.known.put(identity, None)
    nodes = state["nodes"]
    machine.pending = [parse_rows(nodes, state["features"], bytes(2 * len(nodes)), machine.system)] if nodes else []
    machine.moment = np.frombuffer(state["moment"], "<f8").reshape(machine.moment.shape).astype(np.float64)
    machine.estimator.load(state["estimator"])
