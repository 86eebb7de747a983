"""The aggregator's state in packed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fastavro

from hushstream.feedback.memory import BoundedMap
from hushstream.roles import packed
from hushstream.roles.chain import CHAIN_STATE
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.roles.aggregator import AggregatorMachine

VERSION = 1
_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "AggregatorState",
        "fields": [
            {"name": "version", "type": "int"},
            {"name": "deployment", "type": "string"},
            {"name": "config_digest", "type": "bytes"},
            {"name": "line", "type": "int"},
            {"name": "chain", "type": CHAIN_STATE},
            {"name": "model_version", "type": "int"},
            {"name": "position", "type": "long"},
            {"name": "journaled", "type": "long"},
            {"name": "running", "type": "bytes"},
            {"name": "seals", "type": {"type": "map", "values": "long"}},
            {"name": "sealed_phase", "type": "long"},
            {"name": "known", "type": {"type": "array", "items": "string"}},
            {"name": "totals", "type": "bytes"},
        ],
    }
)


def dump(machine: AggregatorMachine) -> bytes:
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
        "seals": {str(origin): phase for origin, phase in machine.seals.by_origin.items()},
        "sealed_phase": machine.seals.complete,
        "known": [identity for identity, _ in machine.known.items()],
        "totals": machine.totals.dump(),
    }
    return packed.write(state, _SCHEMA)


def restore(machine: AggregatorMachine, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: damaged, of another version, line, deployment or configuration.
        ForeignJournal: made on another journal.
    """
    state = packed.read(snapshot, _SCHEMA, "an aggregator's state")
    found = (state["version"], state["line"], state["deployment"], state["config_digest"])
    expected = (VERSION, machine.line, machine.system.config.deployment, machine.system.digest)
    if found != expected:
        raise HushstreamError(f"snapshot: expected version, line, deployment {expected[:3]}, got {found[:3]}")
    machine.chain.resume(state["chain"])
    machine.version, machine.position = state["model_version"], state["position"]
    machine.journaled, machine.running = state["journaled"], state["running"]
    machine.seals.by_origin = {int(origin): phase for origin, phase in state["seals"].items()}
    machine.seals.complete = state["sealed_phase"]
    machine.known = BoundedMap(machine.known.capacity)
    for identity in state["known"]:
        machine.known.put(identity, None)
    machine.totals.restore(state["totals"])
