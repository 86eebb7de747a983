"""The parts of a packed state that all learners have."""

from __future__ import annotations

from typing import Any

from hushstream.engine.deciding import DecisionRole
from hushstream.engine.epochs import EPOCH, NoiseEpoch
from hushstream.engine.state_parts import EARLY_FEEDBACK, OWNER, PAST, array, dump_owner, restore_owner
from hushstream.feedback.memory import BoundedMap, FeedbackRow, PastDecision

PLACE = {
    **OWNER,
    "contexts": "long",
    "clicks": "long",
    "now_ms": "long",
    "last_click_ms": "long",
    "epoch": EPOCH,
}
"""Avro fields: whose state it is, and how far it has come."""

MEMORIES = {"past": array(PAST), "parked": array(EARLY_FEEDBACK)}
"""Avro fields: what is remembered of events."""


def dump_place(machine: DecisionRole) -> dict[str, Any]:
    """The values of `PLACE`."""
    return {
        **dump_owner(machine),
        "contexts": machine.read[machine.contexts_topic, machine.partition],
        "clicks": machine.read[machine.clicks_topic, machine.partition],
        "now_ms": machine.now_ms,
        "last_click_ms": machine.last_click_ms,
        "epoch": machine.epoch.dump(),
    }


def restore_place(machine: DecisionRole, state: dict[str, Any]) -> None:
    """Return to a dumped place; raises as `restore_owner` does."""
    restore_owner(machine, state)
    contexts, clicks = machine.inputs
    machine.read.update({contexts: state["contexts"], clicks: state["clicks"]})
    machine.now_ms, machine.last_click_ms = state["now_ms"], state["last_click_ms"]
    machine.epoch = NoiseEpoch(**state["epoch"])


def dump_memories(machine: DecisionRole) -> dict[str, Any]:
    """The values of `MEMORIES` as they are now, made one by one when they are asked for."""
    return {
        "past": ({"event_id": event_id, **past._asdict()} for event_id, past in machine.past.copy().items()),
        "parked": (click._asdict() for click in machine.early.all()),
    }


def restore_memories(machine: DecisionRole, state: dict[str, Any]) -> None:
    """Remember again what was dumped, and nothing else."""
    machine.past = BoundedMap(machine.past.capacity)
    for item in state["past"]:
        machine.past.put(item.pop("event_id"), PastDecision(**item))
    machine.early.clear()
    for item in state["parked"]:
        machine.early.hold(FeedbackRow(**item))
