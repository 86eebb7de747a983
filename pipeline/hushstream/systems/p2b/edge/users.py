"""The users of a learner partition: warm users in memory, spilled users as bytes in a store.

Which users are warm changes no decision: a user is spilled as the bytes of their whole state and restored from these
bytes, so their next decision is the same. Only log time decides when something expires.

The driver of the machine provides the store. A `durable` store keeps its users from snapshot to snapshot, and a
snapshot then contains no user at all. With the default store, in memory, a snapshot contains all users.

A snapshot is of one moment, and is packed in small parts while the machine goes on (`UsersCut`).

*Packed users.* One user of a learner in packed form: their whole state, or their allowance if the state was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from hushstream.engine.machine import NEVER_MS, MemoryUserStore, StoredUser, UserStore
from hushstream.engine.state.declared import array, record
from hushstream.engine.state.packed import Form
from hushstream.feedback.join import Decisions
from hushstream.privacy.keys import Key
from hushstream.systems.p2b.edge.agent import Allowance, EdgeAgent, EdgeTerms, Slot, Table
from hushstream.systems.p2b.edge.policies import COLD

STATE, ALLOWANCE, FEATURE_STATE, CAPPED_STATE = b"\x01", b"\x02", b"\x03", b"\x04"
"""The first byte of a packed user."""

_ALLOWED = dict.fromkeys(Allowance._fields, "long")
_ANY = {
    "line": "string",
    "learned": "boolean",
    "state": "bytes",
    "base_version": "int",
    "seen_ms": "long",
    **_ALLOWED,
    "last": "long",
}
_AGENT = Form.of(
    "a user's state",
    record(
        "Agent",
        **_ANY,
        targets=array(record("Target", index="long", slot="int")),
        kept=array(record("Kept", slot="int", context="bytes", arm="int", reward="double")),
    ),
)
_INTERACTION = {"context": "bytes", "arm": "int", "reward": "double"}
_SHOWS = array(record("Shows", row="int", entered="int", times_ms=array("long")))
_FEATURES = {
    **_ANY,
    "resolved": array(record("Resolved", slot="int", index="long", deadline_ms="long", **_INTERACTION)),
    "candidates": array(
        record(
            "Candidates",
            slot="int",
            count="long",
            clicked=array(record("Clicked", **_INTERACTION)),
            drawn=array(record("Drawn", **_INTERACTION)),
        )
    ),
}
_FORMS = {
    STATE: _AGENT,
    FEATURE_STATE: Form.of("a user's state with declared features", record("FeatureAgent", **_FEATURES)),
    CAPPED_STATE: Form.of("a user's state with capped items", record("CappedAgent", **_FEATURES, shows=_SHOWS)),
}
_ALLOWANCE = Form.of("a user's allowance", record("Allowance", **_ALLOWED))


def pack_agent(dumped: dict[str, Any]) -> bytes:
    """Pack the values of `EdgeAgent.dump`."""
    tag = CAPPED_STATE if "shows" in dumped else FEATURE_STATE if "candidates" in dumped else STATE
    return tag + _FORMS[tag].write(dumped)


def pack_allowance(allowance: Allowance) -> bytes:
    """Pack the allowance of a user whose state was deleted."""
    return ALLOWANCE + _ALLOWANCE.write(allowance._asdict())


def unpack_agent(value: bytes) -> dict[str, Any] | None:
    """The values that `EdgeAgent.load` takes; None if only the user's allowance is left.

    Raises:
        HushstreamError: the bytes are others, or damaged.
    """
    form = _FORMS.get(value[:1])
    return None if form is None else form.read(value[1:])


def unpack_allowance(value: bytes) -> Allowance:
    """The allowance of a user whose state was deleted.

    Raises:
        HushstreamError: the bytes are others, or damaged.
    """
    return Allowance(**_ALLOWANCE.read(value[1:]))


_AT_ONCE = 1024
"""Number of spilled users that are read before their allowances are written."""


_LOOKED_FOR = 512
"""Number of users whose keys, and what the store has of them, are remembered: more than are looked for together."""

_PORTION_USERS = 64
"""Number of users that are packed at once: about a millisecond."""

_MET_AT_ONCE = 16
"""Number of users who changed during a cut and are given to the store at once; until then their packed states take
memory."""


class _AsCut(NamedTuple):
    """A user as they were at a cut: their packed state, if the store does not have it."""

    seen_ms: int
    value: bytes | None


class UsersCut:
    """The users of a partition as they were at one moment, while they are written into a snapshot.

    `write` packs them one after the other. A user who is about to change before that is packed first (`meet`):
    otherwise the snapshot would hold a later state.

    Attributes:
        kept: names and packed states that the store had no room for; they go into the snapshot itself.
    """

    def __init__(self, users: Users, warm: Mapping[str, int]) -> None:
        """Begin with the rows of the ``warm`` users, a copy, before any of them changes; see `Users.cut`."""
        self._users = users
        self._remaining = iter(warm.items())
        self._met: dict[int, _AsCut] = {}
        """By row. Who left a row was met before; whoever took it since is no user of the cut."""
        self._unwritten: list[tuple[str, int]] = []
        self._store_has_room = users.store.durable
        """Whether users who are met go to the store at once; after it had no room, only `write` asks it again."""
        self.kept: list[tuple[str, bytes]] = []

    def meet(self, row: int, user: str | None = None) -> None:
        """Keep the user of a row as they are now, unless that was done since the cut.

        If ``user`` says who it is, the packed state goes to the store soon, and takes no memory any longer.
        """
        if row in self._met:
            return
        found = self._met[row] = self._as_is(row)
        if user is not None and found.value is not None and self._store_has_room:
            self._unwritten.append((user, row))
            if len(self._unwritten) >= _MET_AT_ONCE:
                self._write_met()

    def _write_met(self) -> None:
        met, self._unwritten = self._unwritten, []
        self._store_has_room = self._users.store.complete([self._stored(user, self._met[row]) for user, row in met])
        if self._store_has_room:
            for _, row in met:
                self._met[row] = self._met[row]._replace(value=None)

    def write(self) -> Iterator[None]:
        """Give the store all states that it does not have, some users at each step."""
        while portion := list(islice(self._remaining, _PORTION_USERS)):
            unmet = []
            given = []
            for user, row in portion:
                found = self._met.get(row)
                if found is None:
                    found = self._as_is(row)
                    unmet.append(row)
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

    def _as_is(self, row: int) -> _AsCut:
        agent = self._users.table.agent(row)
        value = pack_agent(agent.dump()) if self._users.is_new(row) else None
        return _AsCut(agent.seen_ms, value)


class Users:
    """All users of a partition. Those in memory are rows of a table.

    Warm users are in two generations. A user with an event joins the young generation. When that has grown to half of
    the limit, the old generation is spilled: after each fold, as many of its users as the young one grew by. So a user
    is spilled only after about half the limit of other users had events. A warm user costs one lookup in a dictionary,
    and no fold has to spill many users.
    """

    def __init__(
        self,
        terms: EdgeTerms,
        key: Key,
        decisions: Decisions,
        store: UserStore | None = None,
        limit: int | None = None,
    ) -> None:
        """Begin with nobody in memory.

        Args:
            terms: of every user.
            key: the edge key; the store's keys come from it.
            decisions: those of all users.
            store: holds the spilled users.
            limit: about how many users are in memory; None keeps all there.
        """
        self.table = Table(terms, decisions)
        self.store: UserStore = MemoryUserStore() if store is None else store
        self._half = None if limit is None else max(1, limit // 2)
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}
        self._leaving: dict[str, int] = {}
        self._grown = 0
        """The size of the young generation after the last fold."""
        self._tracks = limit is not None or self.store.durable
        self._changed: set[int] = set()
        """The rows that differ from their bytes in the store; only kept if anything is ever spilled."""
        self._owed: dict[bytes, StoredUser] = {}
        """The allowances of users for which the store had no room."""
        self._cut: UsersCut | None = None
        self.name = lru_cache(_LOOKED_FOR)(lambda user: key.digest("user-at-rest", user.encode()))
        """The key of a user in the store; remembered, as users who are not found are begun next, under the same key."""
        self._looked_for: dict[bytes, bytes | None] = {}
        """What the store had under keys that were looked for of late; empty once something is put there."""

    def __len__(self) -> int:
        """How many users are in memory."""
        return len(self._young) + len(self._old) + len(self._leaving)

    def rows(self, users: Sequence[str]) -> list[Any]:
        """The rows of users, as `row` gives them."""
        if self._tracks or self._cut is not None or self._owed or not self.store.empty:
            return [*map(self.row, users)]
        return [*map(self._young.get, users)]

    def row(self, user: str) -> int | None:
        """A user's row, brought into memory; None for a user without a state. The caller may change it."""
        row = self._young.get(user)
        if row is None:
            row = self._old.pop(user, None)
            row = self._leaving.pop(user, None) if row is None else row
            if row is None:
                value = self._spilled(user)
                fields = None if value is None else unpack_agent(value)
                if fields is None:
                    return None
                row = self.load(user, fields)
            self._young[user] = row
        if self._tracks or self._cut is not None:
            self.touch(row, user)
        return row

    def get(self, user: str) -> EdgeAgent | None:
        """The agent of a user's `row`."""
        row = self.row(user)
        return None if row is None else self.table.agent(row)

    def touch(self, row: int, user: str | None = None) -> None:
        """Call this before a row changes, unless `row` has just returned it; ``user`` is whose it is, if known."""
        if self._cut is not None:
            self._cut.meet(row, user)
        if self._tracks:
            self._changed.add(row)

    def begin(self, tracks: Mapping[str, str]) -> list[int]:
        """The rows of new users, given the track of each.

        Who had their state deleted continues from the allowance that was spent before.
        """
        spent: list[Allowance | None] = [None] * len(tracks)
        if self._owed or not self.store.empty:
            values = map(self._spilled, tracks)
            spent = [None if value is None else unpack_allowance(value) for value in values]
            # The rows hold allowances from now on. One that waits for the store would hide a state put there later.
            for name in map(self.name, tracks if self._owed else ()):
                self._owed.pop(name, None)
        rows = self.table.begin([*tracks], [*tracks.values()], spent)
        self._young.update(zip(tracks, rows, strict=True))
        if self._tracks or self._cut is not None:
            for user, row in zip(tracks, rows, strict=True):
                self.touch(row, user)
        return rows

    def delete_state(self, user: str) -> None:
        """Delete the state of a user, if they have one, and keep their allowance."""
        row = self.row(user)
        if row is None:
            return
        agent = self.table.agent(row)
        agent.delete_state()
        self._keep([StoredUser(self.name(user), NEVER_MS, pack_allowance(agent.allowance()))])
        self._leave(self._young.pop(user))

    def _leave(self, row: int) -> None:
        """Free the row of a user who is in memory no longer."""
        self._changed.discard(row)
        self.table.free(row)

    def take_owed(self, user: str) -> Slot:
        """The oldest slot that a user owes whose state was deleted; its content is null.

        Raises:
            HushstreamError: the user owes none.
        """
        value = self._spilled(user)
        spent = None if value is None else unpack_allowance(value)
        agent = EdgeAgent(self.table.terms, user, COLD, spent, self.table.decisions)
        slot = agent.take_slot()
        self._keep([StoredUser(self.name(user), NEVER_MS, pack_allowance(agent.allowance()))])
        return slot

    def is_new(self, row: int) -> bool:
        """Whether no durable store has the present state of a warm user."""
        return not self.store.durable or row in self._changed

    def wrote(self, rows: Iterable[int]) -> None:
        """Note that the store has the present states of these users."""
        self._changed.difference_update(rows)

    def warm(self) -> Iterator[tuple[str, EdgeAgent]]:
        """The users in memory, by generation: those without events for the longest time come first."""
        for warm in (self._leaving, self._old, self._young):
            yield from zip(warm, map(self.table.agent, warm.values()), strict=True)

    def spill_surplus(self) -> None:
        """Spill users if more are in memory than the limit allows; this changes no decision."""
        assert self._half is not None, "without a limit all users stay in memory"
        self._spill_leaving(max(0, len(self._young) - self._grown) + _PORTION_USERS)
        if len(self._young) >= self._half and self._spill_leaving(len(self._leaving)):
            self._leaving, self._old, self._young = self._old, self._young, {}
        self._grown = len(self._young)

    def _spill_leaving(self, count: int) -> bool:
        """Spill ``count`` users of the leaving generation. Returns False if the store has no room."""
        users = dict(islice(self._leaving.items(), count))
        if users and not self._write(users):
            return False
        for user in users:
            self._leave(self._leaving.pop(user))
        return True

    def cut(self) -> UsersCut:
        """Begin to write all users as they are now, for a snapshot; call `end_cut` at its end, also if it fails."""
        self._keep([])
        self.store.cut()
        self._cut = UsersCut(self, self._leaving | self._old | self._young)
        return self._cut

    def end_cut(self, cut: UsersCut) -> None:
        """End a cut: no user is packed for it any more."""
        if self._cut is cut:
            self._cut = None

    def adopt(self, user: str, row: int) -> None:
        """Take a user into memory."""
        self._young[user] = row
        self.touch(row, user)

    def expire(self, before_ms: int) -> int:
        """Delete the states of all users last seen before a log time; returns their number."""
        seen_ms, generations = self.table.seen_ms, (self._leaving, self._old, self._young)
        gone = [user for warm in generations for user, row in warm.items() if seen_ms[row] < before_ms]
        for user in gone:
            self.delete_state(user)
        # The store may have an older state of a warm user, which must not be expired.
        warm = {self.name(user) for user, _ in self.warm()}
        number = len(gone)
        spilled = self.store.unseen_since(before_ms)
        while portion := list(islice(spilled, _AT_ONCE)):
            cold = [stored for stored in portion if stored.key not in warm and stored.key not in self._owed]
            self._keep([self._expired(stored) for stored in cold])
            number += len(cold)
        return number

    def dump(self) -> list[StoredUser]:
        """The users spilled to a store that is not durable, and allowances that the store had no room for."""
        spilled = self.store.all() if isinstance(self.store, MemoryUserStore) else []
        return [*spilled, *self._owed.values()]

    def owe(self, users: Iterable[StoredUser]) -> None:
        """Take over allowances from a snapshot, which the store had no room for when the snapshot was taken."""
        self._owed.update((user.key, user) for user in users)

    def _keep(self, users: Sequence[StoredUser]) -> bool:
        self._looked_for.clear()
        self._owed.update((user.key, user) for user in users)
        if not self._owed:
            return True
        done = self.store.put(self._owed.values())
        if done:
            self._owed = {}
        return done

    def _spilled(self, user: str) -> bytes | None:
        if not self._owed and self.store.empty:
            return None  # Nobody is there: a user's key takes longer than the choice of an arm.
        key = self.name(user)
        owed = self._owed.get(key)
        if owed is not None:
            return owed.value
        if key not in self._looked_for:
            if len(self._looked_for) >= _LOOKED_FOR:
                self._looked_for.clear()
            self._looked_for[key] = self.store.get(key)
        return self._looked_for[key]

    def _expired(self, stored: StoredUser) -> StoredUser:
        fields = unpack_agent(stored.value)
        assert fields is not None, "what stays of a user never expires"
        self.table.decisions.drop(fields["last"])
        if fields["learned"]:
            self.table.terms.policy.end(fields["line"], fields["base_version"])
        left = Allowance(*(fields[name] for name in Allowance._fields))
        return StoredUser(stored.key, NEVER_MS, pack_allowance(left))

    def _write(self, users: dict[str, int]) -> bool:
        self._looked_for.clear()
        if self._cut is not None:
            for user, row in users.items():
                self._cut.meet(row, user)
        changed = {user: self.table.agent(row) for user, row in users.items() if row in self._changed}
        done = self.store.put(
            StoredUser(self.name(user), agent.seen_ms, pack_agent(agent.dump())) for user, agent in changed.items()
        )
        if done:
            self.wrote(agent.row for agent in changed.values())
        return done

    def load(self, user: str, fields: Mapping[str, Any]) -> int:
        """The row of a user from their packed values."""
        (row,) = self.table.begin([user], [fields["line"]], [None])
        self.table.agent(row).restore(fields)
        return row
