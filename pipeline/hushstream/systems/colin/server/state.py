"""The state of a collaborative aggregator in packed form; everything in it was published or is public."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hushstream.engine.one_input_state import (
    KNOWN,
    PLACE,
    SEALS,
    dump_place,
    dump_seals,
    known_again,
    restore_place,
    restore_seals,
)
from hushstream.engine.packed import Form
from hushstream.engine.state_parts import record
from hushstream.systems.colin.rows import parse_rows

if TYPE_CHECKING:
    from hushstream.systems.colin.server.machine import CollaborativeAggregatorMachine

FORM = Form.of(
    "a collaborative aggregator's state",
    2,
    record(
        "CollaborativeAggregatorState",
        **PLACE,
        model_version="int",
        counts="bytes",
        as_stated="boolean",
        **SEALS,
        known=KNOWN,
        nodes="bytes",
        features="bytes",
        moment="bytes",
        estimator="bytes",
    ),
)


def dump(machine: CollaborativeAggregatorMachine) -> bytes:
    """Pack everything that the next fold depends on."""
    state = {
        **dump_place(machine),
        "model_version": machine.version,
        "counts": machine.counts.astype("<i8").tobytes(),
        "as_stated": machine.as_stated,
        **dump_seals(machine.seals),
        "known": [identity for identity, _ in machine.known.items()],
        "nodes": b"".join(part.nodes.astype("<i4").tobytes() for part in machine.pending),
        "features": b"".join(part.features.astype("<f4").tobytes() for part in machine.pending),
        "moment": machine.moment.astype("<f8").tobytes(),
        "estimator": machine.estimator.dump(),
    }
    return FORM.write(state)


def restore(machine: CollaborativeAggregatorMachine, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: damaged, of another line, deployment or configuration.
        OtherVersion: of another release.
        ForeignJournal: made on another journal.
    """
    state = FORM.read(snapshot)
    restore_place(machine, state)
    machine.version = state["model_version"]
    machine.counts = np.frombuffer(state["counts"], "<i8").astype(np.int64)
    machine.as_stated = state["as_stated"]
    restore_seals(machine.seals, state)
    machine.known = known_again(state["known"], machine.known.capacity)
    nodes = state["nodes"]
    machine.pending = [parse_rows(nodes, state["features"], bytes(2 * len(nodes)), machine.system)] if nodes else []
    machine.moment = np.frombuffer(state["moment"], "<f8").reshape(machine.moment.shape).astype(np.float64)
    machine.estimator.load(state["estimator"])
