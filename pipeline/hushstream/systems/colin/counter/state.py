"""The counter's state in packed form; it holds exact sums and open rows, so it is as sensitive as the rewards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.epochs import EPOCH, NoiseEpoch
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
from hushstream.engine.spending import SPENDING
from hushstream.engine.state_parts import record
from hushstream.systems.colin.moments import Moments
from hushstream.systems.colin.rows import Rows, parse_rows

if TYPE_CHECKING:
    from hushstream.systems.colin.counter.machine import CounterMachine

FORM = Form.of(
    "a counter's state",
    5,
    record(
        "CounterState",
        **PLACE,
        key_id="bytes",
        leaf="long",
        epoch=EPOCH,
        leaves="bytes",
        open_since_ms="long",
        **SEALS,
        known=KNOWN,
        taken="bytes",
        batches="bytes",
        nodes="bytes",
        features="bytes",
        rewards="bytes",
        moments="bytes",
        spending=SPENDING,
    ),
)

_PLAIN = ("position", "running", "leaf", "leaves", "batches", "open_since_ms")


@dataclass(frozen=True, slots=True)
class Held:
    """What trying one journal record may change; the ids that are remembered, which are many, are not among it."""

    plain: dict[str, Any]
    epoch: NoiseEpoch
    pending: list[Rows]
    by_origin: dict[int, int]
    complete: int
    taken: NDArray[np.int64]
    moments: Moments
    sums: bytes
    spending: dict[str, Any]


def hold(machine: CounterMachine) -> Held:
    """Keep what `put_back` brings back."""
    return Held(
        {name: getattr(machine, name) for name in _PLAIN},
        replace(machine.epoch),
        list(machine.pending),
        dict(machine.seals.by_origin),
        machine.seals.complete,
        machine.taken.copy(),
        machine.moments,
        machine.moments.dump(),
        machine.spending.dump(),
    )


def put_back(machine: CounterMachine, held: Held) -> None:
    """Bring a machine back to where it was."""
    for name, value in held.plain.items():
        setattr(machine, name, value)
    machine.epoch = held.epoch
    machine.pending, machine.taken, machine.moments = held.pending, held.taken, held.moments
    machine.seals.by_origin, machine.seals.complete = held.by_origin, held.complete
    machine.moments.load(held.sums)
    machine.spending.load(held.spending)


def dump(machine: CounterMachine) -> bytes:
    """Pack everything that the next fold depends on."""
    rows = machine.pending
    state = {
        **dump_place(machine),
        "key_id": machine.key.key_id,
        "leaf": machine.leaf,
        "epoch": machine.epoch.dump(),
        "leaves": machine.leaves,
        "open_since_ms": machine.open_since_ms,
        **dump_seals(machine.seals),
        "known": [identity for identity, _ in machine.known.items()],
        "taken": machine.taken.astype("<i8").tobytes(),
        "batches": machine.batches.to_bytes(16, "little"),
        "nodes": b"".join(part.nodes.astype("<i4").tobytes() for part in rows),
        "features": b"".join(part.features.astype("<f4").tobytes() for part in rows),
        "rewards": b"".join(part.rewards.astype("<f8").tobytes() for part in rows),
        "moments": machine.moments.dump(),
        "spending": machine.spending.dump(),
    }
    return FORM.write(state)


def restore(machine: CounterMachine, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: damaged, of another partition, deployment or configuration.
        OtherVersion: of another release.
        ForeignJournal: made on another journal.
    """
    state = FORM.read(snapshot)
    restore_place(machine, state)
    machine.put_key(state["key_id"])
    machine.leaf, machine.epoch, machine.leaves = state["leaf"], NoiseEpoch(**state["epoch"]), state["leaves"]
    machine.open_since_ms = state["open_since_ms"]
    restore_seals(machine.seals, state)
    machine.known = known_again(state["known"], machine.known.capacity)
    machine.taken = np.frombuffer(state["taken"], "<i8").astype(np.int64)
    machine.batches = int.from_bytes(state["batches"], "little")
    machine.pending = _rows(state, machine)
    machine.moments = machine.open_moments()
    machine.moments.load(state["moments"])
    machine.spending.load(state["spending"])


def _rows(state: dict[str, bytes], machine: CounterMachine) -> list[Rows]:
    if not state["nodes"]:
        return []
    return [parse_rows(state["nodes"], state["features"], state["rewards"], machine.system)]
