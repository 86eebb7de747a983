"""The learner's whole state in packed form: one Avro value, so that what is restored was checked on the way."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import fastavro

from hushstream.edge.agent import EdgeAgent
from hushstream.edge.deadlines import Deadlines
from hushstream.feedback.memory import BoundedMap, ParkedClick, Parking, PastDecision
from hushstream.roles import packed
from hushstream.roles.chain import CHAIN_STATE
from hushstream.roles.state_parts import PARKED, PAST, READER, array, record
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.roles.learner import LearnerMachine

VERSION = 1


_OPEN = record(
    "Open",
    event_id="string",
    context="bytes",
    arm="int",
    propensity="long",
    model_version="int",
    index="long",
    deadline_ms="long",
    shown_arm="int",
)
_AGENT = record(
    "Agent",
    line="string",
    state="bytes",
    base_version="int",
    decided="long",
    due="int",
    sent="int",
    open=array(_OPEN),
    targets=array(record("Target", index="long", slot="int")),
    kept=array(record("Kept", slot="int", context="bytes", arm="int", reward="double")),
)
_SHARED = record("Shared", line="string", version="int", state="bytes")
_SCHEMA = fastavro.parse_schema(
    record(
        "LearnerState",
        version="int",
        deployment="string",
        config_digest="bytes",
        partition="int",
        chain=CHAIN_STATE,
        contexts="long",
        clicks="long",
        now_ms="long",
        last_click_ms="long",
        readers=array(READER),
        shared=array(_SHARED),
        agents={"type": "map", "values": _AGENT},
        due=array(record("Due", due_ms="long", user="string")),
        past=array(PAST),
        parked=array(PARKED),
    )
)


def dump(machine: LearnerMachine) -> bytes:
    """Pack everything that the next fold depends on."""
    policy = machine.terms.policy
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
        "readers": [reader.dump() for reader in machine.models],
        "shared": [
            {
                "line": reader.line,
                "version": policy.shared(reader.line).version,
                "state": policy.shared(reader.line).state.dump(),
            }
            for reader in machine.models
        ],
        "agents": {user: agent.dump() for user, agent in machine.agents.items()},
        "due": [{"due_ms": due_ms, "user": user} for due_ms, user in machine.due],
        "past": [{"event_id": event_id, **past._asdict()} for event_id, past in machine.past.items()],
        "parked": [click._asdict() for click in machine.parking.all()],
    }
    return packed.write(state, _SCHEMA)


def restore(machine: LearnerMachine, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: the bytes are damaged, of another version, partition, deployment or configuration.
        ForeignJournal: they were made on another journal.
    """
    state = packed.read(snapshot, _SCHEMA, "a learner's state")
    found = (state["version"], state["partition"], state["deployment"], state["config_digest"])
    expected = (VERSION, machine.partition, machine.system.config.deployment, machine.system.digest)
    if found != expected:
        raise HushstreamError(f"snapshot: expected version, partition and deployment {expected[:3]}, got {found[:3]}")
    machine.chain.resume(state["chain"])
    for reader, place in zip(machine.models, state["readers"], strict=True):
        reader.resume(place)
    for shared in state["shared"]:
        machine.terms.policy.reinstate(shared["line"], shared["version"], shared["state"])
    machine.read.update(
        {("contexts", machine.partition): state["contexts"], ("clicks", machine.partition): state["clicks"]}
    )
    machine.now_ms, machine.last_click_ms = state["now_ms"], state["last_click_ms"]
    machine.agents = {
        user: EdgeAgent.load(machine.terms, machine.user_key(user), dumped) for user, dumped in state["agents"].items()
    }
    _restore_memories(machine, state)


def _restore_memories(machine: LearnerMachine, state: dict[str, Any]) -> None:
    feedback = machine.system.config.feedback
    machine.due = deque((item["due_ms"], item["user"]) for item in state["due"])
    machine.past = BoundedMap(feedback.remembered_events)
    for item in state["past"]:
        machine.past.put(item.pop("event_id"), PastDecision(**item))
    machine.parking = Parking(feedback.parked_clicks)
    for item in state["parked"]:
        machine.parking.park(ParkedClick(**item))
    waiting = [
        (decision.deadline_ms, agent, event_id)
        for agent in machine.agents.values()
        for event_id, decision in agent.open.items()
    ]
    machine.deadlines = Deadlines(sorted(waiting, key=lambda item: item[0]))
