"""The parts of a packed state that machines with one input have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from hushstream.engine.state_parts import OWNER, Owner, array, dump_owner, restore_owner
from hushstream.feedback.memory import BoundedMap

if TYPE_CHECKING:
    from hushstream.engine.phase_ends import PhaseEnds


class Reads(Owner, Protocol):
    """A `OneInput`, as far as its state says how far it has come."""

    position: int
    journaled: int
    running: bytes


PLACE = {**OWNER, "position": "long", "journaled": "long", "running": "bytes"}
"""Avro fields: whose state it is, and how far it has come."""

SEALS = {"seals": {"type": "map", "values": "long"}, "sealed_phase": "long"}
"""Avro fields: which phases were sealed by whom."""

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


def dump_seals(seals: PhaseEnds) -> dict[str, Any]:
    """The values of `SEALS`."""
    return {
        "seals": {str(origin): phase for origin, phase in seals.by_origin.items()},
        "sealed_phase": seals.complete,
    }


def restore_seals(seals: PhaseEnds, state: dict[str, Any]) -> None:
    """Know the seals that were dumped, and no others."""
    seals.by_origin = {int(origin): phase for origin, phase in state["seals"].items()}
    seals.complete = state["sealed_phase"]


def known_again(identities: Iterable[str], capacity: int) -> BoundedMap[None]:
    """The ids that were dumped, oldest first."""
    known: BoundedMap[None] = BoundedMap(capacity)
    for identity in identities:
        known.put(identity, None)
    return known
