"""The learner's whole state in packed form: one Avro value, so that what is restored was checked on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from hushstream.engine.deciding_state import (
    MEMORIES,
    PLACE,
    dump_memories,
    dump_place,
    restore_memories,
    restore_place,
)
from hushstream.engine.packed import Form
from hushstream.engine.spending import SPENDING
from hushstream.engine.spilled_users import MemoryUserStore, StoredUser
from hushstream.engine.state_parts import READER, array, record
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.deadlines import Deadlines
from hushstream.systems.p2b.edge.user_records import unpack_agent
from hushstream.systems.p2b.edge.users import Users, UsersCut
from hushstream.systems.p2b.machines.learner_base import Learner

_SHARED = record("Shared", line="string", version="int", users="long", newest="boolean", state="bytes")
FORM = Form.of(
    "a learner's state",
    8,
    record(
        "LearnerState",
        **PLACE,
        readers=array(READER),
        shared=array(_SHARED),
        warm=array(record("Warm", user="string", value="bytes")),
        resting=array(record("Resting", key="bytes", seen_ms="long", value="bytes")),
        due=array(record("Due", due_ms="long", user="string")),
        **MEMORIES,
        lift="bytes",
        spending=["null", SPENDING],
    ),
)


def portions(machine: Learner) -> Generator[None, None, bytes]:
    """Pack everything that the next fold depends on; see `Machine.snapshot_portions`.

    The first step copies what is small, or copied as one block; users, and past events, are packed in the others.
    """
    users = machine.agents
    cut = users.cut()
    state = {
        **dump_place(machine),
        "readers": [reader.dump() for reader in machine.models],
        "shared": machine.terms.policy.dump_models(),
        "resting": [stored._asdict() for stored in users.dump()],
        "due": ({"due_ms": due_ms, "user": user} for due_ms, user in list(machine.due)),
        **dump_memories(machine),
        "lift": b"" if machine.lift is None else machine.lift.dump(),
        "spending": None if machine.spending is None else machine.spending.dump(),
    }
    try:
        yield
        yield from cut.write()
    finally:
        users.end_cut(cut)
    return (yield from FORM.portions({**state, "warm": _warm(cut)}))


def restore(machine: Learner, snapshot: bytes) -> None:
    """Replace a machine's state by a packed one.

    Raises:
        HushstreamError: the bytes are damaged, of another partition, deployment or configuration.
        OtherVersion: they are of another release.
        ForeignJournal: they were made on another journal.
    """
    state = FORM.read(snapshot)
    restore_place(machine, state)
    for reader, place in zip(machine.models, state["readers"], strict=True):
        reader.resume(place)
    machine.terms.policy.restore_models(state["shared"])
    machine.agents = _restored_users(machine, state)
    restore_memories(machine, state)
    _restore_due(machine, state)
    machine.lift = machine.open_lift()
    if machine.lift is not None:
        machine.lift.load(state["lift"])
    if machine.spending is not None:
        machine.spending.load(state["spending"])


def _warm(cut: UsersCut) -> Iterator[dict[str, Any]]:
    """Who was not spilled: whom the store could not take, and of the others those whose decisions wait, by name."""
    names = {user for user, _ in cut.kept}
    yield from ({"user": user, "value": value} for user, value in cut.kept)
    # They must be in memory, as their deadlines are.
    yield from ({"user": user, "value": b""} for user in cut.waiting if user not in names)


def _restored_users(machine: Learner, state: dict[str, Any]) -> Users:
    store = machine.agents.store
    spilled = [StoredUser(**item) for item in state["resting"]]
    users = machine.make_users(store if store.durable else MemoryUserStore(spilled))
    if store.durable:
        users.owe(spilled)
    for item in state["warm"]:
        if not item["value"]:
            users.get(item["user"])
            continue
        fields = unpack_agent(item["value"])
        if fields is None:
            raise HushstreamError("snapshot: expected a user's state, got what stays of one")
        users.adopt(item["user"], EdgeAgent.load(machine.terms, users.user_key(item["user"]), fields))
    return users


def _restore_due(machine: Learner, state: dict[str, Any]) -> None:
    machine.due = deque((item["due_ms"], item["user"]) for item in state["due"])
    waiting = [
        (decision.deadline_ms, agent, event_id)
        for agent in machine.agents.values()
        for event_id, decision in agent.open.items()
    ]
    machine.deadlines = Deadlines(sorted(waiting, key=lambda item: item[0]))
