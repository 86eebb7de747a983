"""The users of a learner partition: the warm ones in memory, the cold ones as bytes in a store.

Which users are warm changes no decision: a user is spilled as the bytes of their whole state and restored from these
bytes, so their next decision is the same. Only log time decides when something expires.

The driver of the machine provides the store. A `durable` store keeps its users from snapshot to snapshot, and a
snapshot then contains no user at all. With the default store, in memory, a snapshot contains all users.

A snapshot is of one moment, and is packed in small parts while the machine goes on (`UsersCut`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from hushstream.engine.state.spilled import NEVER_MS, MemoryUserStore, StoredUser, UserStore
from hushstream.privacy.keys import Key
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.policy import COLD
from hushstream.systems.p2b.edge.terms import Allowance, EdgeTerms, Slot
from hushstream.systems.p2b.edge.user_records import pack_agent, pack_allowance, unpack_agent, unpack_allowance

_AT_ONCE = 1024
"""Spilled users that are read before what stays of them is written."""

_PORTION_USERS = 64
"""Users that are packed in one go: about a millisecond."""

_MET_AT_ONCE = 16
"""Users who changed during a cut and are given to the store in one go: their packed states take memory until then."""


class _AsCut(NamedTuple):
    """A user as they were at a cut: their packed state, if the store does not have it, and whether decisions wait."""

    seen_ms: int
    value: bytes | None
    waits: bool


class UsersCut:
    """The users of a partition as they were at one moment, on their way into a snapshot.

    Each is looked at in turn, or before they change (`meet`) if that comes first.

    Attributes:
        waiting: those whose decisions wait for feedback.
        kept: names and packed states that the store could not take: they belong into the snapshot itself.
    """

    def __init__(self, users: Users, warm: Mapping[str, EdgeAgent]) -> None:
        """Begin with the ``warm`` users, a copy, before any of them changes; see `Users.cut`."""
        self._users = users
        self._turns = iter(warm.items())
        self._met: dict[EdgeAgent, _AsCut] = {}
        self._unwritten: list[tuple[str, EdgeAgent]] = []
        self._takes = users.store.durable
        """Whether the store may take those who are met; once it had no room, it is asked at their turns alone."""
        self.waiting: list[str] = []
        self.kept: list[tuple[str, bytes]] = []

    def meet(self, agent: EdgeAgent, user: str | None = None) -> None:
        """Keep an agent as it is, if it was not met since the cut: in the store soon, if it is said whose it is."""
        if agent in self._met:
            return
        found = self._met[agent] = self._as_is(agent)
        if user is not None and found.value is not None and self._takes:
            self._unwritten.append((user, agent))
            if len(self._unwritten) >= _MET_AT_ONCE:
                self._write_met()

    def _write_met(self) -> None:
        met, self._unwritten = self._unwritten, []
        self._takes = self._users.store.complete([self._stored(user, self._met[agent]) for user, agent in met])
        if self._takes:
            for _, agent in met:
                self._met[agent] = self._met[agent]._replace(value=None)

    def write(self) -> Iterator[None]:
        """Give the store everybody whose state it does not have, some at each step."""
        while portion := list(islice(self._turns, _PORTION_USERS)):
            unmet = []
            given = []
            for user, agent in portion:
                found = self._met.get(agent)
                if found is None:
                    found = self._as_is(agent)
                    unmet.append(agent)
                if found.waits:
                    self.waiting.append(user)
                if found.value is not None:
                    given.append((user, self._stored(user, found)))
            if not given or self._users.store.complete([stored for _, stored in given]):
                self._users.wrote(unmet)
            else:
                self.kept.extend((user, stored.value) for user, stored in given)
            yield

    def _stored(self, user: str, found: _AsCut) -> StoredUser:
        assert found.value is not None
        return StoredUser(self._users.name(user), found.seen_ms, found.value)

    def _as_is(self, agent: EdgeAgent) -> _AsCut:
        value = pack_agent(agent.dump()) if self._users.is_new(agent) else None
        return _AsCut(agent.seen_ms, value, len(agent.open) > 0)


class Users:
    """All users of a partition.

    Warm users are in two generations. A user with an event joins the young generation. When that has grown to half of
    the limit, the old generation is spilled: after each fold, as many of its users as the young one grew by. So a user
    is spilled only after about half the limit of other users had events. A warm user costs one lookup in a dictionary,
    and no fold has to spill many users.
    """

    def __init__(self, terms: EdgeTerms, key: Key, store: UserStore | None = None, limit: int | None = None) -> None:
        """Begin with nobody in memory.

        Args:
            terms: of every agent.
            key: the edge key; users' keys and the store's keys come from it.
            store: where cold users lie.
            limit: users in memory, about; None keeps all there. Those with decisions that wait for feedback
                stay in memory and may be more.
        """
        self._terms = terms
        self._key = key
        self.store: UserStore = MemoryUserStore() if store is None else store
        self._half = None if limit is None else max(1, limit // 2)
        self._waiting = 0
        self._young: dict[str, EdgeAgent] = {}
        self._old: dict[str, EdgeAgent] = {}
        self._leaving: dict[str, EdgeAgent] = {}
        self._grown = 0
        """How large the young generation was after the last fold."""
        self._tracks = limit is not None or self.store.durable
        self._changed: set[EdgeAgent] = set()
        """Who differs from what the store has of them; followed only where something is ever spilled."""
        self._owed: dict[bytes, StoredUser] = {}
        """What stays of users, for which the store had no room."""
        self._cut: UsersCut | None = None
        self._named: tuple[str, bytes] = ("", self._key.digest("user-at-rest", b""))
        """Who was named last: whoever is not found is begun next."""

    def __len__(self) -> int:
        """How many are in memory."""
        return len(self._young) + len(self._old) + len(self._leaving)

    def __getitem__(self, user: str) -> EdgeAgent:
        """A user who is known."""
        agent = self.get(user)
        if agent is None:
            raise KeyError
        return agent

    def get(self, user: str) -> EdgeAgent | None:
        """A user's agent, brought into memory; None for a user without one. Whoever asks may change it."""
        agent = self._young.get(user)
        if agent is None:
            agent = self._old.pop(user, None) or self._leaving.pop(user, None) or self._load(user)
            if agent is None:
                return None
            self._young[user] = agent
        self.touch(agent, user)
        return agent

    def peek(self, user: str) -> EdgeAgent | None:
        """A user's agent if they are in memory, to be looked at and not changed; they are no more recent by it."""
        return self._young.get(user) or self._old.get(user) or self._leaving.get(user)

    def touch(self, agent: EdgeAgent, user: str | None = None) -> None:
        """To be called before an agent changes that `get` did not give just now; with whose it is, if that is known."""
        if self._cut is not None:
            self._cut.meet(agent, user)
        if self._tracks:
            self._changed.add(agent)

    def begin(self, user: str, track: str) -> EdgeAgent:
        """A new agent; it goes on with what an earlier one of this user has spent."""
        key = self.name(user)
        value = self._spilled(key)
        spent = None if value is None else unpack_allowance(value)
        agent = EdgeAgent(self._terms, self.user_key(user), track, spent)
        # The agent holds it from now on: what had no room in the store would hide the state that is put there later.
        self._owed.pop(key, None)
        self.adopt(user, agent)
        return agent

    def give_up(self, user: str) -> EdgeAgent | None:
        """Drop a user's state and keep what they have spent; None when they have no state."""
        agent = self.get(user)
        if agent is None:
            return None
        agent.give_up()
        self._keep([StoredUser(self.name(user), NEVER_MS, pack_allowance(agent.allowance()))])
        del self._young[user]
        self._changed.discard(agent)
        return agent

    def take_owed(self, user: str) -> Slot:
        """The oldest slot that a user owes whose state was given up; its content is null.

        Raises:
            HushstreamError: they owe none.
        """
        key = self.name(user)
        value = self._spilled(key)
        spent = None if value is None else unpack_allowance(value)
        agent = EdgeAgent(self._terms, self.user_key(user), COLD, spent)
        slot = agent.take_slot()
        self._keep([StoredUser(key, NEVER_MS, pack_allowance(agent.allowance()))])
        return slot

    def user_key(self, user: str) -> Key:
        """The key that a user's coins and report ids come from, derived from the edge key."""
        return self._key.derive("user", user)

    def name(self, user: str) -> bytes:
        """The key of a user in the store."""
        if user != self._named[0]:
            self._named = user, self._key.digest("user-at-rest", user.encode())
        return self._named[1]

    def is_new(self, agent: EdgeAgent) -> bool:
        """Whether the store does not have a warm user's state, as far as it is durable."""
        return not self.store.durable or agent in self._changed

    def wrote(self, agents: Iterable[EdgeAgent]) -> None:
        """Note that the store has these as they are."""
        self._changed.difference_update(agents)

    def warm(self) -> Iterator[tuple[str, EdgeAgent]]:
        """Those in memory: the longest unmet first, as far as that is known."""
        yield from self._leaving.items()
        yield from self._old.items()
        yield from self._young.items()

    def values(self) -> Iterator[EdgeAgent]:
        """The agents in memory."""
        return (agent for _, agent in self.warm())

    def rest(self) -> None:
        """Put users to rest if there are too many in memory; changes nothing that can be decided."""
        if self._half is None:
            return
        self._put_to_rest(max(0, len(self._young) - self._grown) + _PORTION_USERS)
        if len(self._young) >= self._half + self._waiting and self._put_to_rest(len(self._leaving)):
            self._leaving, self._old, self._young, self._waiting = self._old, self._young, {}, 0
        self._grown = len(self._young)

    def _put_to_rest(self, count: int) -> bool:
        """Let so many go of those who leave, or keep them warm if they wait for feedback; False without room."""
        users = dict(islice(self._leaving.items(), count))
        if not users:
            return True
        waiting = {user: agent for user, agent in users.items() if len(agent.open)}
        if not self._write({user: agent for user, agent in users.items() if user not in waiting}):
            return False
        for user in users:
            del self._leaving[user]
        self._young.update(waiting)
        # Going through them again pays only when as many others have come.
        self._waiting += len(waiting)
        return True

    def cut(self) -> UsersCut:
        """Begin to write everybody as they are now, for a snapshot; `end_cut` ends it, also where it is given up."""
        self._keep([])
        self.store.cut()
        self._cut = UsersCut(self, self._leaving | self._old | self._young)
        return self._cut

    def end_cut(self, cut: UsersCut) -> None:
        """Nobody is packed for this cut any more."""
        if self._cut is cut:
            self._cut = None

    def adopt(self, user: str, agent: EdgeAgent) -> None:
        """Take a user into memory."""
        self._young[user] = agent
        self.touch(agent, user)

    def expire(self, before_ms: int) -> int:
        """Give up the state of everybody last seen before a log time; returns how many that were."""
        gone = [user for user, agent in self.warm() if agent.seen_ms < before_ms]
        for user in gone:
            self.give_up(user)
        # Of a warm user the store may have an older state.
        warm = {self.name(user) for user, _ in self.warm()}
        number = len(gone)
        spilled = self.store.unseen_since(before_ms)
        while portion := list(islice(spilled, _AT_ONCE)):
            cold = [stored for stored in portion if stored.key not in warm and stored.key not in self._owed]
            self._keep([self._expired(stored) for stored in cold])
            number += len(cold)
        return number

    def dump(self) -> list[StoredUser]:
        """Everybody spilled to a store that is not durable."""
        spilled = self.store.all() if isinstance(self.store, MemoryUserStore) else []
        return [*spilled, *self._owed.values()]

    def owe(self, users: Iterable[StoredUser]) -> None:
        """Take in what stays of users, for a store that had no room when a snapshot was taken."""
        self._owed.update((user.key, user) for user in users)

    def _keep(self, users: Sequence[StoredUser]) -> bool:
        self._owed.update((user.key, user) for user in users)
        if not self._owed:
            return True
        done = self.store.put(self._owed.values())
        if done:
            self._owed = {}
        return done

    def _spilled(self, key: bytes) -> bytes | None:
        owed = self._owed.get(key)
        return self.store.get(key) if owed is None else owed.value

    def _expired(self, stored: StoredUser) -> StoredUser:
        fields = unpack_agent(stored.value)
        assert fields is not None, "what stays of a user never expires"
        if fields["learned"]:
            self._terms.policy.end(fields["line"], fields["base_version"])
        left = Allowance(*(fields[name] for name in Allowance._fields))
        return StoredUser(stored.key, NEVER_MS, pack_allowance(left))

    def _write(self, users: dict[str, EdgeAgent]) -> bool:
        if self._cut is not None:
            for user, agent in users.items():
                self._cut.meet(agent, user)
        changed = {user: agent for user, agent in users.items() if agent in self._changed}
        done = self.store.put(
            StoredUser(self.name(user), agent.seen_ms, pack_agent(agent.dump())) for user, agent in changed.items()
        )
        if done:
            self.wrote(changed.values())
        return done

    def _load(self, user: str) -> EdgeAgent | None:
        value = self._spilled(self.name(user))
        fields = None if value is None else unpack_agent(value)
        return None if fields is None else EdgeAgent.load(self._terms, self.user_key(user), fields)


_TIDY_AT_LEAST = 4096
_TIDY_EVERY = 256


class Deadlines:
    """A queue of (deadline, agent, event id); deadlines are added in order, as log time never goes back.

    Most decisions are rewarded long before their deadline. Their entries are dropped by a look at the next two for
    every one that was added, round and round, so that the queue follows what waits (about three times as much where
    every wait is as long) and not what was decided within the wait; and no decision pays for the whole queue at once.
    """

    __slots__ = ("_added", "_ahead", "_seen")

    def __init__(self, waiting: Iterable[tuple[int, EdgeAgent, str]] = ()) -> None:
        """Begin with what waits already, in the order of its deadlines."""
        self._ahead = deque(waiting)
        """Not looked at yet in this round; later than all of ``_seen``."""
        self._seen: deque[tuple[int, EdgeAgent, str]] = deque()
        self._added = 0

    def __len__(self) -> int:
        """Entries held, with some that were resolved meanwhile."""
        return len(self._seen) + len(self._ahead)

    def add(self, deadline_ms: int, agent: EdgeAgent, event_id: str) -> None:
        """Note the deadline of a decision that begins to wait."""
        self._ahead.append((deadline_ms, agent, event_id))
        self._added += 1
        if self._added == _TIDY_EVERY:
            self._added = 0
            if len(self) >= _TIDY_AT_LEAST:
                self._tidy(2 * _TIDY_EVERY)

    def passed(self, now_ms: int) -> Iterator[tuple[EdgeAgent, str]]:
        """Take what still waits at ``now_ms`` though its deadline is not later."""
        while (entries := self._seen or self._ahead) and entries[0][0] <= now_ms:
            entry = entries.popleft()
            if _waits(*entry):
                yield entry[1], entry[2]

    def _tidy(self, count: int) -> None:
        """Look at the next ``count`` entries of at least as many, and begin a new round after the last."""
        for _ in range(count):
            if not self._ahead:
                self._ahead, self._seen = self._seen, self._ahead
            entry = self._ahead.popleft()
            if _waits(*entry):
                self._seen.append(entry)


def _waits(deadline_ms: int, agent: EdgeAgent, event_id: str) -> bool:
    """Whether this very decision waits: an event id that was forgotten may have been decided a second time."""
    decision = agent.open.get(event_id)
    return decision is not None and decision.deadline_ms == deadline_ms
