"""The counter's state in packed form; it holds exact sums and open rows, so it is as sensitive as the rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np
from numpy.typing import NDArray

from hushstream.feedback.memory import BoundedMap
from hushstream.roles import packed
from hushstream.roles.chain import CHAIN_STATE
from hushstream.roles.spending import SPENDING
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.collaborative_moments import Moments
from hushstream.systems.collaborative_rows import Rows, parse_rows

if TYPE_CHECKING:
    from hushstream.roles.counter import CounterMachine

VERSION = 3
_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "CounterState",
        "fields": [
            {"name": "version", "type": "int"},
            {"name": "deployment", "type": "string"},
            {"name": "config_digest", "type": "bytes"},
            {"name": "partition", "type": "int"},
            {"name": "chain", "type": CHAIN_STATE},
            {"name": "key_id", "type": "bytes"},
            {"name": "position", "type": "long"},
            {"name": "journaled", "type": "long"},
            {"name": "running", "type": "bytes"},
            {"name": "leaf", "type": "long"},
            {"name": "epoch", "type": "int"},
            {"name": "renoised", "type": "int"},
            {"name": "leaves", "type": "bytes"},
            {"name": "diverged", "type": "boolean"},
            {"name": "open_since_ms", "type": "long"},
            {"name": "seals", "type": {"type": "map", "values": "long"}},
            {"name": "sealed_phase", "type": "long"},
            {"name": "known", "type": {"type": "array", "items": "string"}},
            {"name": "taken", "type": "bytes"},
            {"name": "nodes", "type": "bytes"},
            {"name": "features", "type": "bytes"},
            {"name": "rewards", "type": "bytes"},
            {"name": "moments", "type": "bytes"},
            {"name": "spending", "type": SPENDING},
        ],
    }
)


_PLAIN = ("position", "running", "leaf", "epoch", "renoised", "leaves", "diverged", "open_since_ms")


@dataclass(frozen=True, slots=True)
class Held:
    """What trying one journal record may change; the ids that are remembered, which are many, are not among it."""

    plain: dict[str, Any]
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
    machine.pending, machine.taken, machine.moments = held.pending, held.taken, held.moments
    machine.seals.by_origin, machine.seals.complete = held.by_origin, held.complete
    machine.moments.load(held.sums)
    machine.spending.load(held.spending)


def dump(machine: CounterMachine) -> bytes:
    """Pack everything that the next fold depends on."""
    rows = machine.pending
    state = {
        "version": VERSION,
        "deployment": machine.system.config.deployment,
        "config_digest": machine.system.digest,
        "partition": machine.partition,
        "chain": machine.chain.dump(),
        "key_id": machine.key.key_id,
        "position": machine.position,
        "journaled": machine.journaled,
        "running": machine.running,
        "leaf": machine.leaf,
        "epoch": machine.epoch,
        "renoised": machine.renoised,
        "leaves": machine.leaves,
        "diverged": machine.diverged,
        "open_since_ms": machine.open_since_ms,
        "seals": {str(origin): phase for origin, phase in machine.seals.by_origin.items()},
        "sealed_phase": machine.seals.complete,
        "known": [identity for identity, _ in machine.known.items()],
        "taken": machine.taken.astype("<i8").tobytes(),
        "nodes": b"".join(part.nodes.astype("<i4").tobytes() for part in rows),
        "features": b"".join(part.features.astype("<f4").tobytes() for part in rows),
        "rewards": b"".join(part.rewards.astype("<f8").tobytes() for part in rows),
        "moments": machine.moments.dump(),
        "spending": machine.spending.dump(),
    }
    return packed.write(state, _SCHEMA)


def restore(machine: CounterMachine, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: damaged, of another version, partition, deployment or configuration.
        ForeignJournal: made on another journal.
    """
    state = packed.read(snapshot, _SCHEMA, "a counter's state")
    found = (state["version"], state["partition"], state["deployment"], state["config_digest"])
    expected = (VERSION, machine.partition, machine.system.config.deployment, machine.system.digest)
    if found != expected:
        raise HushstreamError(f"snapshot: expected version, partition, deployment {expected[:3]}, got {found[:3]}")
    machine.chain.resume(state["chain"])
    machine.put_key(state["key_id"])
    machine.position, machine.journaled, machine.running = state["position"], state["journaled"], state["running"]
    machine.leaf, machine.epoch, machine.leaves = state["leaf"], state["epoch"], state["leaves"]
    machine.renoised, machine.diverged = state["renoised"], state["diverged"]
    machine.open_since_ms = state["open_since_ms"]
    machine.seals.by_origin = {int(origin): phase for origin, phase in state["seals"].items()}
    machine.seals.complete = state["sealed_phase"]
    machine.known = BoundedMap(machine.known.capacity)
    for identity in state["known"]:
        machine.known.put(identity, None)
    machine.taken = np.frombuffer(state["taken"], "<i8").astype(np.int64)
    machine.pending = _rows(state, machine)
    machine.moments = machine.system.moments(machine.key, machine.chain.genesis_nonce, machine.epoch, machine.partition)
    machine.moments.load(state["moments"])
    machine.spending.load(state["spending"])


def _rows(state: dict[str, bytes], machine: CounterMachine) -> list[Rows]:
    if not state["nodes"]:
        return []
    return [parse_rows(state["nodes"], state["features"], state["rewards"], machine.system)]
