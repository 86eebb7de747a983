"""What every role is: a deterministic fold of input logs into a journal and the records that follow from it.

A machine owns one *home partition*. It never reads a clock, a file, a socket or a random source: whoever
drives it (a Faust worker, the direct runner, `verify`) moves bytes in and out, and nothing else.

The order of the protocol (journal first, then release, then commit) belongs to the driver; what a record
says belongs to the machine.

What every machine does is `Machine`. What only some do has a small protocol of its own, and a function that finds it by
its name (`waiting`, `releasing`, `reopening`, `ticking`, `spilling`, `readers_of`): a role that cannot do it writes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

from hushstream.engine.records import (
    Awaited,
    FollowsModels,
    InputRange,
    InputSlice,
    JournalEntry,
    Output,
    Step,
    TopicPartition,
)
from hushstream.engine.state.spilled import UserStore
from hushstream.privacy.amounts import Cost
from hushstream.privacy.ledger import Exhausted


class Machine(Protocol):
    """One role on one home partition.

    Life: ``start`` (genesis, found or made) -> ``replay`` for each record of the journal -> ``fold`` for new input.
    """

    @property
    def journal(self) -> TopicPartition:
        """Where this machine's journal lives."""

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        """The co-partitioned inputs, assigned by the consumer group."""

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        """Inputs that every worker reads without a group (models)."""

    def is_last(self, value: bytes) -> bool:
        """Whether a journal record is the very one that the state ends with: same number, same chain before it."""

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """The digest that a journal record over these slices holds (16 bytes)."""

    def genesis(self, nonce: bytes) -> bytes:
        """The first record of a new journal, from 32 random bytes of the driver."""

    def start(self, genesis: bytes) -> None:
        """Begin from the genesis record that the journal really holds at its first offset.

        Raises:
            HushstreamError: it belongs to another deployment, configuration, role, partition or key.
        """

    def entry(self, value: bytes) -> JournalEntry:
        """Read sequence number and input ranges of a journal record.

        Raises:
            HushstreamError: the bytes are not a journal record of this role.
        """

    def continues(self, value: bytes, last: bytes) -> bool:
        """Whether bytes, which need not be readable, are closed as the journal's record behind ``last`` is."""

    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset to *feed* to ``fold``, for every input and broadcast."""

    def committed(self) -> Mapping[TopicPartition, int]:
        """The offsets from which a worker that has only the journal must read again (group inputs).

        At most ``positions``; smaller where a window is open or ids must be remembered.
        """

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """The largest prefix of what has arrived that may be folded now (it may be empty).

        A context that waits for a click (``after_click``) is held back by this, with what follows it.
        """

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """Fold new input; each slice starts at the machine's position. Mutates the machine.

        Journal bytes of successive steps continue each other. Never raises for bad content: that becomes
        dead letters.
        """

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        """The input that ``replay`` needs for this journal record (for a shuffler it may begin earlier)."""

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Fold the ranges that a journal record names, and give the outputs that it stands for.

        Raises:
            OffChain: sequence number, lows or chain do not continue this machine; its state is unchanged.
            ReplayMismatch: the inputs give other releases than the journal's digest says.
        """

    def snapshot(self) -> bytes:
        """The whole state, packed; to be kept only once every journaled step before it was acknowledged."""

    def restore(self, snapshot: bytes) -> None:
        """Replace the state.

        Raises:
            HushstreamError: damaged, another version, deployment, or journal (genesis) than ``start`` saw.
        """


class Waits(Protocol):
    """A machine whose records may wait for others."""

    @property
    def awaited(self) -> Awaited | None:
        """What the first record waits for that the last `Machine.ready` held back; None where none is."""

    def ends_at(self, before: int, end: int) -> None:
        """Wait no more for what is not there.

        Args:
            before: of the first input, all records below this offset were there,
            end: when the log that one of them waits for ended here.
        """


class ReleasingMachine(Protocol):
    """A machine that releases with noise, at a price."""

    @property
    def charged(self) -> Cost | None:
        """What its releases were charged so far; None where this deployment charges nothing."""

    @property
    def refused(self) -> Exhausted | None:
        """Why the next release would be withheld; None while the budget pays for it, or where there is none."""

    def opened_epoch_since(self, sequence: int) -> bool:
        """Whether a requested epoch was opened behind a journal record (`hushstream.engine.noise.epochs`)."""

    def request_epoch(self, nonce: bytes, forked: bool = False, incarnations: int = 0) -> bool:
        """Request an epoch of noise, because the journal may have been rolled back and more released on other data.

        A worker calls this when it takes a journal up: after the replay, before the next fold.

        Noise that is named by the content that it covers never meets other data. There a fork costs the units that both
        branches released one price more, and only a fork that is known is charged. Noise that is drawn ahead of its
        content (trees with negative digits) would cover other data a second time, and the difference of two releases
        would be exact. There the next release opens an epoch with noise of its own and pays its price again; where the
        budget cannot pay for it, nothing is released. The journal record that opens the epoch says so, so a replay
        opens it, too. A worker requests the epoch again at every take-up until the journal holds that record; two
        requests open one epoch, under the nonce of the last.

        Args:
            nonce: 16 random bytes, which name the epoch (`hushstream.engine.noise.epochs`).
            forked: whether a lost branch is known, not only possible. Then the epoch opens for any kind of noise.
            incarnations: how many have paid before, as far as the zone's marks know: the epoch that opens is
                one more, and those that this journal has no record of are charged with it.

        Returns:
            Whether the next release opens an epoch.
        """


class Reopens(Protocol):
    """A machine that can go on after a record of its journal that its inputs no longer give."""

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """After a `ReplayMismatch`, which left the state alone: adopt a journal record that the inputs no longer give.

        What it released stands, and is never sent again. The next release opens an epoch of the noise after the
        record's own, which another state of this journal may have begun, at its price.
        """


class ReadsModels(Protocol):
    """A machine that follows published models."""

    @property
    def readers(self) -> Sequence[FollowsModels]:
        """Of each track that it follows, the reader."""


class Ticks(Protocol):
    """A machine for which log time must go on, though nothing comes."""

    def tick(self, idle_ms: int) -> Output | None:
        """A record to append to the home input when nothing came for ``idle_ms``; None when not needed."""


class SpillsUsers(Protocol):
    """A machine whose users are spilled to a store that the driver gives."""

    def keep_users(self, store: UserStore, resident: int) -> None:
        """Begin with users over this store, about ``resident`` of them in memory; before `Machine.restore`."""


def waiting(machine: Machine) -> Waits | None:
    """The machine, if its records may wait."""
    found: Waits | None = _able(machine, "ends_at")
    return found


def releasing(machine: Machine) -> ReleasingMachine | None:
    """The machine, if it releases with noise."""
    found: ReleasingMachine | None = _able(machine, "request_epoch")
    return found


def reopening(machine: Machine) -> Reopens | None:
    """The machine, if it can go on after a record that its inputs no longer give."""
    found: Reopens | None = _able(machine, "reopen")
    return found


def ticking(machine: Machine) -> Ticks | None:
    """The machine, if log time must go on, though nothing comes."""
    found: Ticks | None = _able(machine, "tick")
    return found


def spilling(machine: Machine) -> SpillsUsers | None:
    """The machine, if users are spilled."""
    found: SpillsUsers | None = _able(machine, "keep_users")
    return found


def readers_of(machine: Machine) -> Sequence[FollowsModels]:
    """The machine's readers of published models, one for each track that it follows."""
    found: ReadsModels | None = _able(machine, "readers")
    return () if found is None else found.readers


def float_ties(machine: Machine) -> int:
    """How many replayed answers stand by the journal although this machine's floats differ by a rounding."""
    count: int = getattr(machine, "float_ties", 0)
    return count


def snapshot_portions(machine: Machine) -> Generator[None, None, bytes]:
    """`Machine.snapshot`, packed a little at a time: as the state is at the first step, while the machine folds on.

    A large state has ``snapshot_portions`` of its own, each step of which takes a few milliseconds; a small one is
    packed in one go. The last step returns it. One snapshot at a time; to give it up, close it.
    """
    own: Callable[[], Generator[None, None, bytes]] | None = getattr(machine, "snapshot_portions", None)
    if own is None:
        packed = machine.snapshot()
        yield
    else:
        packed = yield from own()
    return packed


def _able(machine: Machine, ability: str) -> Any:
    return machine if hasattr(machine, ability) else None
