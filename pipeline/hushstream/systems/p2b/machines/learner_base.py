"""The learner role: many `EdgeAgent`s on a stream (edge zone).

What a batch folds (`hushstream.engine.deciding_fold`) and what was decided go into one decisions record, which is at
once the answer to the client and the journal. Slots follow from it; their bytes are fixed by the fold and their digest
is journaled before they are sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from hushstream.engine.deciding import DECIDING, MEMORIES, DecisionRole
from hushstream.engine.early_feedback import UserEarlyFeedback
from hushstream.engine.intake import DecodedContexts, decode_checked
from hushstream.engine.machine import InputSlice, finished
from hushstream.engine.models import ModelReader
from hushstream.engine.spending import SPENDING, Spending
from hushstream.engine.spilled_users import MemoryUserStore, StoredUser, UserStore
from hushstream.engine.state.declared import FIXED, Several, Single, State, after, optional_record
from hushstream.engine.state_parts import READER, array, record
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.privacy.noise import NoiseAddress
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.deployment import TRACKS, P2BSystem
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.deadlines import Deadlines
from hushstream.systems.p2b.edge.user_records import unpack_agent
from hushstream.systems.p2b.edge.users import Users, UsersCut
from hushstream.systems.p2b.lift import LiftCounter, in_holdout

_SHARED = record("Shared", line="string", version="int", users="long", newest="boolean", state="bytes")


class _UsersField:
    """The users: whom the store holds, who lies in memory, and who waits for a deadline."""

    saved = True

    def schema(self, name: str) -> Mapping[str, Any]:
        """See `Field.schema`."""
        return {
            "warm": array(record("Warm", user="string", value="bytes")),
            "resting": array(record("Resting", key="bytes", seen_ms="long", value="bytes")),
        }

    def dump(self, role: Learner, name: str) -> Mapping[str, Any]:
        """See `Field.dump`."""
        return finished(self.portions(role, name))

    def portions(self, role: Learner, name: str) -> Generator[None, None, Mapping[str, Any]]:
        """See `InPortions.portions`: the first step copies what is small, or copied as one block."""
        users = role.agents
        cut = users.cut()
        resting = [stored._asdict() for stored in users.dump()]
        try:
            yield
            yield from cut.write()
        finally:
            users.end_cut(cut)
        return {"warm": _warm(cut), "resting": resting}

    def load(self, role: Learner, name: str, values: Mapping[str, Any]) -> None:
        """See `Field.load`."""
        store = role.agents.store
        spilled = [StoredUser(**item) for item in values["resting"]]
        role.agents = users = role.make_users(store if store.durable else MemoryUserStore(spilled))
        if store.durable:
            users.owe(spilled)
        for item in values["warm"]:
            if not item["value"]:
                users.get(item["user"])
                continue
            fields = unpack_agent(item["value"])
            if fields is None:
                raise HushstreamError("snapshot: expected a user's state, got what stays of one")
            users.adopt(item["user"], EdgeAgent.load(role.terms, users.user_key(item["user"]), fields))


def _warm(cut: UsersCut) -> Iterator[dict[str, Any]]:
    """Who was not spilled: whom the store could not take, and of the others those whose decisions wait, by name."""
    names = {user for user, _ in cut.kept}
    yield from ({"user": user, "value": value} for user, value in cut.kept)
    # They must be in memory, as their deadlines are.
    yield from ({"user": user, "value": b""} for user in cut.waiting if user not in names)


def _pack_due(due: Iterable[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    return ({"due_ms": due_ms, "user": user} for due_ms, user in list(due))


def _unpack_due(value: Iterable[dict[str, Any]], before: object) -> deque[tuple[int, str]]:
    return deque((item["due_ms"], item["user"]) for item in value)


def _pack_lift(role: Learner) -> Mapping[str, Any]:
    return {"lift": b"" if role.lift is None else role.lift.dump()}


def _unpack_lift(role: Learner, values: Mapping[str, Any]) -> None:
    role.lift = role.open_lift()
    if role.lift is not None:
        role.lift.load(values["lift"])


def _pack_readers(models: Sequence[ModelReader]) -> list[dict[str, Any]]:
    return [reader.dump() for reader in models]


def _unpack_readers(value: Sequence[dict[str, Any]], models: Sequence[ModelReader]) -> Sequence[ModelReader]:
    for reader, place in zip(models, value, strict=True):
        reader.load(place)
    return models


class Learner(DecisionRole):
    """The learner on one partition of contexts and clicks."""

    keeps_users = True
    state = State(
        "a learner's state",
        8,
        "LearnerState",
        DECIDING,
        models=Single(array(READER), _pack_readers, _unpack_readers, disk="readers"),
        terms=Several(
            {"shared": array(_SHARED)},
            lambda role: {"shared": role.terms.policy.dump_models()},
            lambda role, values: role.terms.policy.restore_models(values["shared"]),
        ),
        agents=_UsersField(),
        due=Single(array(record("Due", due_ms="long", user="string")), _pack_due, _unpack_due),
        deadlines=after("_find_deadlines"),
        **MEMORIES,
        lift=Several({"lift": "bytes"}, _pack_lift, _unpack_lift),
        spending=optional_record(SPENDING),
    )
    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("period_ms", "expire_ms", "sweep_ms", "lift_ms"), FIXED),
        "_resident": "the worker's choice: how many users lie in memory",
    }

    system: P2BSystem
    early: UserEarlyFeedback

    def __init__(self, system: P2BSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        self._resident: int | None = None
        config = system.config
        super().__init__(
            system,
            partition,
            key,
            [ModelReader(system, track, TRACKS[track], "Model") for track in range(system.track_count)],
            UserEarlyFeedback(config.feedback.early_feedback, config.users.early_feedback),
            config.feedback.remembered_events,
            round(config.slot.settle_seconds * 1000),
        )
        self.terms = system.edge_terms()
        self.agents = self.make_users(None)
        self.deadlines = Deadlines()
        self.period_ms = round(config.slot.period_seconds * 1000)
        after = config.users.expire_after_seconds
        self.expire_ms = None if after is None else max(1, round(after * 1000))
        self.sweep_ms = max(1, (self.expire_ms or 0) // 4)
        """How often, in log time, what has expired is looked for among those who do not come back."""
        self.lift: LiftCounter | None = None
        self.spending: Spending | None = Spending(system.lift_terms, partition) if config.lift.holdout else None
        """What the lift's releases spend, where there are any."""
        self.lift_ms = round(config.lift.every_seconds * 1000)

    @property
    def refused(self) -> Exhausted | None:
        """See `Machine.refused`: the lift's releases."""
        return None if self.spending is None else self.spending.refusal(self.epoch.next_place())

    @property
    def _releases(self) -> bool:
        return self.lift is not None

    @property
    def _reaches_ahead(self) -> bool:
        return self.lift is not None

    def _redraw(self) -> None:
        if self.lift is not None:
            self.lift.redraw(self._lift_address())

    def keep_users(self, store: UserStore, resident: int) -> None:
        self._resident = resident
        self.agents = self.make_users(store)

    def make_users(self, store: UserStore | None) -> Users:
        """Users over a store, none of them in memory."""
        return Users(self.terms, self.key, store, self._resident)

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.lift = self.open_lift()

    def open_lift(self) -> LiftCounter | None:
        """The lift's counter under noise of this journal; None where there is no hold-out."""
        config = self.system.config
        if not config.lift.holdout:
            return None
        wait_ms = self.terms.attribution_window_ms
        key = self.key.derive("lift")
        return LiftCounter(config.lift, config.release.levels, wait_ms, key, self._lift_address())

    def _lift_address(self) -> NoiseAddress:
        return self.system.lift_address(self.nonce, self.partition, self.epoch.number)

    def in_holdout(self, agent: EdgeAgent) -> bool:
        """Whether a user is never answered by a model."""
        return self.lift is not None and in_holdout(agent.key, self.system.config.lift)

    def lift_id(self, *parts: int) -> bytes:
        """16 opaque bytes that name a release of the lift, or (without parts) its counter."""
        place = b"".join(part.to_bytes(8, "little") for part in (self.partition, *parts))
        # The counter keeps its name over all epochs, so that its newest release takes the place of those before.
        return self.key.digest("lift-id", self.nonce if parts else self.chain.genesis_nonce, place)

    def snapshot_portions(self) -> Generator[None, None, bytes]:
        return self.state.portions(self)

    def _find_deadlines(self) -> None:
        """Know when each decision that waits is due."""
        waiting = [
            (decision.deadline_ms, agent, event_id)
            for agent in self.agents.values()
            for event_id, decision in agent.open.items()
        ]
        self.deadlines = Deadlines(sorted(waiting, key=lambda item: item[0]))

    def _decode(self, part: InputSlice) -> DecodedContexts:
        return decode_checked(part, self.system.requests)

    def user_key(self, user: str) -> Key:
        """The key that a user's coins and report ids come from, derived from the edge key."""
        return self.agents.user_key(user)
