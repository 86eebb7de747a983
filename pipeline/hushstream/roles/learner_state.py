"""The learner's whole state in packed form: one Avro value, so that what is restored was checked on the way."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import fastavro

from hushstream.edge.agent import EdgeAgent
from hushstream.edge.deadlines import Deadlines
from hushstream.feedback.memory import BoundedMap, ParkedClick, PastDecision
from hushstream.roles import packed
from hushstream.roles.chain import CHAIN_STATE
from hushstream.roles.learner_records import pack_agent, unpack_agent
from hushstream.roles.learner_users import MemoryUserStore, StoredUser, Users
from hushstream.roles.state_parts import PARKED, PAST, READER, array, record
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.roles.learner import LearnerMachine

VERSION = 3

_SHARED = record("Shared", line="string", version="int", users="long", newest="boolean", state="bytes")
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
        warm=array(record("Warm", user="string", value="bytes")),
        resting=array(record("Resting", key="bytes", seen_ms="long", value="bytes")),
        due=array(record("Due", due_ms="long", user="string")),
        past=array(PAST),
        parked=array(PARKED),
        lift="bytes",
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
        "shared": policy.dump_models(),
        **_users(machine.agents),
        "due": [{"due_ms": due_ms, "user": user} for due_ms, user in machine.due],
        "past": [{"event_id": event_id, **past._asdict()} for event_id, past in machine.past.items()],
        "parked": [click._asdict() for click in machine.parking.all()],
        "lift": b"" if machine.lift is None else machine.lift.dump(),
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
    machine.terms.policy.restore_models(state["shared"])
    machine.read.update(
        {("contexts", machine.partition): state["contexts"], ("clicks", machine.partition): state["clicks"]}
    )
    machine.now_ms, machine.last_click_ms = state["now_ms"], state["last_click_ms"]
    machine.agents = _restored_users(machine, state)
    _restore_memories(machine, state)
    machine.lift = machine.open_lift()
    if machine.lift is not None:
        machine.lift.load(state["lift"])


def _users(users: Users) -> dict[str, Any]:
    """With a durable store that has room only the names of those whose decisions wait: they must be in memory."""
    if users.store.durable and users.write_changed():
        warm = [{"user": user, "value": b""} for user, agent in users.warm() if len(agent.open)]
    else:
        warm = [{"user": user, "value": pack_agent(agent.dump())} for user, agent in users.warm()]
    return {"warm": warm, "resting": [stored._asdict() for stored in users.dump()]}


def _restored_users(machine: LearnerMachine, state: dict[str, Any]) -> Users:
    store = machine.agents.store
    resting = [StoredUser(**item) for item in state["resting"]]
    users = machine.make_users(store if store.durable else MemoryUserStore(resting))
    if store.durable:
        users.owe(resting)
    for item in state["warm"]:
        if not item["value"]:
            users.get(item["user"])
            continue
        fields = unpack_agent(item["value"])
        if fields is None:
            raise HushstreamError("snapshot: expected a user's state, got what stays of one")
        users.adopt(item["user"], EdgeAgent.load(machine.terms, users.user_key(item["user"]), fields))
    return users


def _restore_memories(machine: LearnerMachine, state: dict[str, Any]) -> None:
    feedback = machine.system.config.feedback
    machine.due = deque((item["due_ms"], item["user"]) for item in state["due"])
    machine.past = BoundedMap(feedback.remembered_events)
    for item in state["past"]:
        machine.past.put(item.pop("event_id"), PastDecision(**item))
    machine.parking = machine.make_parking(ParkedClick(**item) for item in state["parked"])
    waiting = [
        (decision.deadline_ms, agent, event_id)
        for agent in machine.agents.values()
        for event_id, decision in agent.open.items()
    ]
    machine.deadlines = Deadlines(sorted(waiting, key=lambda item: item[0]))
