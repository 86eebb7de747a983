"""What every role is: a deterministic fold of input logs into a journal and the records that follow from it.

A machine owns one *home partition*. It never reads a clock, a file, a socket or a random source. A driver (a Faust
worker, the direct runner, or `verify`) only moves bytes in and out. The driver is responsible for the order of the
protocol: journal first, then release, then commit. The machine is responsible for the content of records.

Every role derives from `Machine`. What only some machines do has a default there, of one that does not (`Abilities`):
a driver asks every machine alike, and finds no ability by its name.

*Spilled users.* A machine with very many users keeps most of them as bytes in a store of its driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from hushstream.engine.records import (
    Awaited,
    FollowsModels,
    InputRange,
    InputSlice,
    JournalEntry,
    Output,
    ReplayMismatch,
    Step,
    TopicPartition,
)
from hushstream.privacy.amounts import Cost
from hushstream.privacy.ledger import Exhausted

NEVER_MS = 1 << 62
"""Value in place of the log time of a user's last context, if the record must not expire."""


class StoredUser(NamedTuple):
    """One spilled user.

    Attributes:
        key: a keyed digest of their name (16 bytes); the store has no names.
        seen_ms: log time of their last context, or `NEVER_MS`.
        value: their packed state, or what stays after an erasure.
    """

    key: bytes
    seen_ms: int
    value: bytes


class UserStore(Protocol):
    """A store of spilled users, by key. Every call sees the effects of earlier calls.

    Attributes:
        durable: whether it keeps its content at each snapshot together with the snapshot.
        empty: whether it is known to hold nobody, without a look.
    """

    durable: bool

    @property
    def empty(self) -> bool: ...

    def get(self, key: bytes) -> bytes | None:
        """The value of a user, or None."""

    def put(self, users: Iterable[StoredUser]) -> bool:
        """Add or replace users. If the store is full, it adds none and returns False."""

    def cut(self) -> None:
        """Fix the content of the next snapshot: all users put so far, and those that `complete` adds."""

    def complete(self, users: Iterable[StoredUser]) -> bool:
        """Add users to the snapshot, as they were at the last cut.

        If the store cannot keep them, it adds none and returns False.
        """

    def unseen_since(self, seen_ms: int) -> Iterator[StoredUser]:
        """The users last seen before a log time, at present; the caller may put users during the iteration."""


class MemoryUserStore:
    """Spilled users in memory: the default store of a machine."""

    durable = False

    def __init__(self, users: Iterable[StoredUser] = ()) -> None:
        """Begin with these."""
        self._users = {user.key: user for user in users}

    def __len__(self) -> int:
        """Number of users."""
        return len(self._users)

    @property
    def empty(self) -> bool:
        """See `UserStore`."""
        return not self._users

    def get(self, key: bytes) -> bytes | None:
        user = self._users.get(key)
        return None if user is None else user.value

    def put(self, users: Iterable[StoredUser]) -> bool:
        self._users.update((user.key, user) for user in users)
        return True

    def cut(self) -> None:
        """See `UserStore.cut`: this store is in no snapshot."""

    def complete(self, users: Iterable[StoredUser]) -> bool:
        """See `UserStore.complete`: this store keeps nothing for snapshots."""
        return False

    def unseen_since(self, seen_ms: int) -> Iterator[StoredUser]:
        return iter([user for user in self.all() if user.seen_ms < seen_ms])

    def all(self) -> list[StoredUser]:
        """All users, by key."""
        return [self._users[key] for key in sorted(self._users)]


class KeptUsers(MemoryUserStore):
    """Spilled users of a stored state, in memory, for a check that recomputes later records and takes no snapshots."""

    durable = True

    def complete(self, users: Iterable[StoredUser]) -> bool:
        return self.put(users)


class Journaled(ABC):
    """The journal of a machine."""

    journal: TopicPartition
    """Its topic and partition."""

    @abstractmethod
    def is_last(self, value: bytes) -> bool:
        """Whether the state ends with this journal record: same number, and same chain before it."""

    @abstractmethod
    def genesis(self, nonce: bytes) -> bytes:
        """The first record of a new journal, from 32 random bytes of the driver."""

    @abstractmethod
    def start(self, genesis: bytes) -> None:
        """Begin from the genesis record at the first offset of the journal.

        Raises:
            HushstreamError: it belongs to another deployment, configuration, role, partition or key.
        """

    @abstractmethod
    def entry(self, value: bytes) -> JournalEntry:
        """Read sequence number and input ranges of a journal record.

        Raises:
            HushstreamError: the bytes are not a journal record of this role.
        """

    @abstractmethod
    def continues(self, value: bytes, last: bytes) -> bool:
        """Whether bytes end with the chain digest of the record behind ``last``; they need not be readable."""

    @abstractmethod
    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        """The input that ``replay`` needs for this journal record; it may begin before the record's ranges."""


class Packed(ABC):
    """The state of a machine."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """The whole state, packed. It may be stored only after all journal records before it were acknowledged."""

    def snapshot_portions(self) -> Generator[None, None, bytes]:
        """`snapshot` in portions: it packs the state as it is at the first step, while the machine goes on folding.

        The steps of a large state take a few milliseconds each; a small one is packed in one step. The last step
        returns the snapshot. Only one snapshot may be made at a time; close the generator to cancel it.
        """
        packed = self.snapshot()
        yield
        return packed

    @abstractmethod
    def restore(self, snapshot: bytes) -> None:
        """Replace the state.

        Raises:
            HushstreamError: damaged, another version, deployment, or journal (genesis) than ``start`` saw.
        """


class Abilities:
    """What only some machines do; here as of one that does nothing of it."""

    float_ties: int = 0
    """Number of replayed answers taken from the journal because this machine's floats differ by a rounding."""
    folds_ahead: ClassVar[bool] = False
    """Whether it folds records that no record of its journal names yet, such as those of an open window."""
    reopens: ClassVar[bool] = False
    """Whether it can continue after a record of its journal that its inputs no longer reproduce (`reopen`)."""
    spills_users: ClassVar[bool] = False
    """Whether it spills users to a store of its driver (`keep_users`)."""

    # Records that wait for others.

    @property
    def awaited(self) -> Awaited | None:
        """What the first record waits for that the last `Machine.ready` held back; None if there is none."""
        return None

    def ends_at(self, before: int, end: int) -> None:
        """Stop waiting for records that do not exist.

        Args:
            before: all records of the first input below this offset had arrived,
            end: when the log that one of them waits for ended at this offset.
        """

    @property
    def readers(self) -> Sequence[FollowsModels]:
        """The readers of published models, one for each track that it follows."""
        return ()

    def tick(self, idle_ms: int) -> Output | None:
        """A record to append to the home input when none came for ``idle_ms``; None if it is not needed."""
        return None

    # Releases with noise, at a price.

    @property
    def charged(self) -> Cost | None:
        """The charges of its releases so far; None if this deployment charges nothing."""
        return None

    @property
    def refused(self) -> Exhausted | None:
        """Why the next release would be withheld; None while the budget pays for it, or if there is no budget."""
        return None

    def opened_epoch_since(self, sequence: int) -> bool:
        """Whether a requested epoch was opened behind a journal record (`hushstream.engine.noise.epoch_budget`)."""
        return False

    def request_epoch(self, nonce: bytes, forked: bool = False, incarnations: int = 0) -> bool:
        """Request an epoch of noise, because the journal may have been rolled back after releases about other data.

        A worker calls this when it takes a journal up: after the replay, before the next fold.

        Noise whose address includes a digest of its content never covers other data. With such noise a fork costs one
        more price for units that both branches released, and only a known fork is charged. Noise that is drawn ahead of
        its content (trees with negative digits) would cover other data a second time, and the difference of two
        releases would show the data exactly. With such noise the next release opens an epoch with new noise and pays
        its price again; if the budget cannot pay, nothing is released. The journal record that opens the epoch says so,
        so a replay opens it, too. A worker requests the epoch again at every take-up until the journal holds that
        record; two requests open one epoch, under the nonce of the last.

        Args:
            nonce: 16 random bytes, which name the epoch (`hushstream.engine.noise.epoch_budget`).
            forked: whether a lost branch is known, and not only possible. Then the epoch opens for any kind of noise.
            incarnations: number of incarnations that have paid before, according to the zone's marks. The epoch that
                opens is one more, and those without a record in this journal are charged with it.

        Returns:
            Whether the next release opens an epoch.
        """
        return False

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Adopt a journal record that the inputs no longer reproduce, where the machine `reopens`.

        It may be called after a `ReplayMismatch` that did not change the state. The record's release counts, and is
        never sent again. The next release opens the noise epoch after the record's own (which another state of this
        journal may have begun), and pays its price.

        Raises:
            ReplayMismatch: this machine cannot.
        """
        raise ReplayMismatch("journal: expected a role that reopens a record that its inputs no longer give, got none")

    def keep_users(self, store: UserStore, resident: int) -> None:
        """Use this store, and keep about ``resident`` users in memory. Must be called before `Machine.restore`."""


class Machine(Journaled, Packed, Abilities):
    """One role on one home partition.

    Life: ``start`` (genesis, found or made) -> ``replay`` for each record of the journal -> ``fold`` for new input.
    """

    inputs: tuple[TopicPartition, ...]
    """The co-partitioned inputs, assigned by the consumer group."""

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        """Inputs that every worker reads without a group (models)."""
        return tuple(place for place in self.positions() if place not in self.inputs)

    @abstractmethod
    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """The digest that a journal record over these slices holds (16 bytes)."""

    @abstractmethod
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset to *feed* to ``fold``, for every input and broadcast."""

    def committed(self) -> Mapping[TopicPartition, int]:
        """The offsets of group inputs from which a worker that has only the journal must read again.

        They are at most ``positions``, and smaller while a window is open or ids must be remembered.
        """
        positions = self.positions()
        return {place: positions[place] for place in self.inputs}

    @abstractmethod
    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """The largest prefix of the arrived input that may be folded now (it may be empty).

        A context that waits for a click (``after_click``) is held back, with everything behind it.
        """

    @abstractmethod
    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """Fold new input; each slice starts at the machine's position. Mutates the machine.

        Journal bytes of successive steps continue each other. Never raises for bad content: that becomes
        dead letters.
        """

    @abstractmethod
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Fold the ranges that a journal record names, and return the outputs of the record.

        Raises:
            OffChain: sequence number, lows or chain do not continue this machine; its state is unchanged.
            ReplayMismatch: the inputs give releases with another digest than the journal's.
        """
