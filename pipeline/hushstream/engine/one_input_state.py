"""The parts of a packed state that machines with one input have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from hushstream.engine.phase_ends import PhaseEnds
from hushstream.engine.state_parts import OWNER, Owner, array, dump_owner, restore_owner
from hushstream.feedback.memory import BoundedMap


class Reads(Owner, Protocol):
    """A `OneInput`, as far as its state says how far it has come."""

    position: int
    journaled: int
    running: bytes


PLACE = {**OWNER, "position": "long", "journaled": "long", "running": "bytes"}
"""Avro fields: whose state it is, and how far it has come."""

PHASE_ENDS = {"seals": {"type": "map", "values": "long"}, "sealed_phase": "long"}
"""Avro fields: which phases were ended by whom."""

KNOWN = array("string")
"""Avro type: ids that are known again."""


def dump_place(machine: Reads) -> dict[str, Any]:
    """The values of `PLACE`."""
    return {
        **dump_owner(machine),
        "position": machine.position,
        "journaled": machine.journaled,
        "running": machine.running,
    }


def restore_place(machine: Reads, state: dict[str, Any]) -> None:
    """Return to a dumped place; raises as `restore_owner` does."""
    restore_owner(machine, state)
    machine.position, machine.journaled, machine.running = state["position"], state["journaled"], state["running"]


def dump_phase_ends(phase_ends: PhaseEnds) -> dict[str, Any]:
    """The values of `PHASE_ENDS`."""
    return {
        "seals": {str(origin): phase for origin, phase in phase_ends.by_origin.items()},
        "sealed_phase": phase_ends.complete,
    }


def restore_phase_ends(phase_ends: PhaseEnds, state: dict[str, Any]) -> None:
    """Know the phase ends that were dumped, and no others."""
    phase_ends.by_origin = {int(origin): phase for origin, phase in state["seals"].items()}
    phase_ends.complete = state["sealed_phase"]


def known_again(identities: Iterable[str], capacity: int) -> BoundedMap[None]:
    """The ids that were dumped, oldest first."""
    known: BoundedMap[None] = BoundedMap(capacity)
    for identity in identities:
        known.put(identity, None)
    return known
