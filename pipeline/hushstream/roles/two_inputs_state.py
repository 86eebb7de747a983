"""The parts of a packed state that all learners have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hushstream.feedback.memory import BoundedMap, ParkedClick, PastDecision
from hushstream.roles.chain import CHAIN_STATE
from hushstream.roles.state_parts import PARKED, PAST, array
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.roles.two_inputs import TwoInputs

PLACE = {
    "version": "int",
    "deployment": "string",
    "config_digest": "bytes",
    "partition": "int",
    "chain": CHAIN_STATE,
    "contexts": "long",
    "clicks": "long",
    "now_ms": "long",
    "last_click_ms": "long",
}
"""Avro fields: whose state it is, and how far it has come."""

MEMORIES = {"past": array(PAST), "parked": array(PARKED)}
"""Avro fields: what is remembered of events."""


def dump_place(machine: TwoInputs, version: int) -> dict[str, Any]:
    """The values of `PLACE`; ``version`` is that of the whole packed form."""
    return {
        "version": version,
        "deployment": machine.system.config.deployment,
        "config_digest": machine.system.digest,
        "partition": machine.partition,
        "chain": machine.chain.dump(),
        "contexts": machine.read["contexts", machine.partition],
        "clicks": machine.read["clicks", machine.partition],
        "now_ms": machine.now_ms,
        "last_click_ms": machine.last_click_ms,
    }


def restore_place(machine: TwoInputs, version: int, state: dict[str, Any]) -> None:
    """Return to a dumped place.

    Raises:
        HushstreamError: it is of another version, partition, deployment or configuration.
        ForeignJournal: it was made on another journal.
    """
    found = (state["version"], state["partition"], state["deployment"], state["config_digest"])
    expected = (version, machine.partition, machine.system.config.deployment, machine.system.digest)
    if found != expected:
        raise HushstreamError(f"snapshot: expected version, partition and deployment {expected[:3]}, got {found[:3]}")
    machine.chain.resume(state["chain"])
    home = machine.partition
    machine.read.update({("contexts", home): state["contexts"], ("clicks", home): state["clicks"]})
    machine.now_ms, machine.last_click_ms = state["now_ms"], state["last_click_ms"]


def dump_memories(machine: TwoInputs) -> dict[str, Any]:
    """The values of `MEMORIES`."""
    return {
        "past": [{"event_id": event_id, **past._asdict()} for event_id, past in machine.past.items()],
        "parked": [click._asdict() for click in machine.parking.all()],
    }


def restore_memories(machine: TwoInputs, state: dict[str, Any]) -> None:
    """Remember again what was dumped, and nothing else."""
    machine.past = BoundedMap(machine.past.capacity)
    for item in state["past"]:
        machine.past.put(item.pop("event_id"), PastDecision(**item))
    machine.parking.clear()
    for item in state["parked"]:
        machine.parking.park(ParkedClick(**item))
