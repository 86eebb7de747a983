"""What every role is: a deterministic fold of input logs into a journal and the records that follow from it.

A machine owns one *home partition*. It never reads a clock, a file, a socket or a random source. A driver (a Faust
worker, the direct runner, or `verify`) only moves bytes in and out. The driver is responsible for the order of the
protocol: journal first, then release, then commit. The machine is responsible for the content of records.

Every machine implements `Machine`. Abilities of only some machines are small protocols, each with a function that finds
it by its name (`waiting`, `releasing`, `reopening`, `ticking`, `spilling`, `readers_of`); a role without an ability
writes nothing for it.
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
        """The topic and partition of this machine's journal."""

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        """The co-partitioned inputs, assigned by the consumer group."""

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        """Inputs that every worker reads without a group (models)."""

    def is_last(self, value: bytes) -> bool:
        """Whether the state ends with this journal record: same number, and same chain before it."""

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """The digest that a journal record over these slices holds (16 bytes)."""

    def genesis(self, nonce: bytes) -> bytes:
        """The first record of a new journal, from 32 random bytes of the driver."""

    def start(self, genesis: bytes) -> None:
        """Begin from the genesis record at the first offset of the journal.

        Raises:
            HushstreamError: it belongs to another deployment, configuration, role, partition or key.
        """

    def entry(self, value: bytes) -> JournalEntry:
        """Read sequence number and input ranges of a journal record.

        Raises:
            HushstreamError: the bytes are not a journal record of this role.
        """

    def continues(self, value: bytes, last: bytes) -> bool:
        """Whether bytes end with the chain digest of the record behind ``last``; they need not be readable."""

    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset to *feed* to ``fold``, for every input and broadcast."""

    def committed(self) -> Mapping[TopicPartition, int]:
        """The offsets of group inputs from which a worker that has only the journal must read again.

        They are at most ``positions``, and smaller while a window is open or ids must be remembered.
        """

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """The largest prefix of the arrived input that may be folded now (it may be empty).

        A context that waits for a click (``after_click``) is held back, with everything behind it.
        """

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """Fold new input; each slice starts at the machine's position. Mutates the machine.

        Journal bytes of successive steps continue each other. Never raises for bad content: that becomes
        dead letters.
        """

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        """The input that ``replay`` needs for this journal record; it may begin before the record's ranges."""

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Fold the ranges that a journal record names, and return the outputs of the record.

        Raises:
            OffChain: sequence number, lows or chain do not continue this machine; its state is unchanged.
            ReplayMismatch: the inputs give releases with another digest than the journal's.
        """

    def snapshot(self) -> bytes:
        """The whole state, packed. It may be stored only after all journal records before it were acknowledged."""

    def restore(self, snapshot: bytes) -> None:
        """Replace the state.

        Raises:
            HushstreamError: damaged, another version, deployment, or journal (genesis) than ``start`` saw.
        """


class Waits(Protocol):
    """A machine whose records may wait for others."""

    @property
    def awaited(self) -> Awaited | None:
        """What the first record waits for that the last `Machine.ready` held back; None if there is none."""

    def ends_at(self, before: int, end: int) -> None:
        """Stop waiting for records that do not exist.

        Args:
            before: all records of the first input below this offset had arrived,
            end: when the log that one of them waits for ended at this offset.
        """


class ReleasingMachine(Protocol):
    """A machine that releases with noise, at a price."""

    @property
    def charged(self) -> Cost | None:
        """The charges of its releases so far; None if this deployment charges nothing."""

    @property
    def refused(self) -> Exhausted | None:
        """Why the next release would be withheld; None while the budget pays for it, or if there is no budget."""

    def opened_epoch_since(self, sequence: int) -> bool:
        """Whether a requested epoch was opened behind a journal record (`hushstream.engine.noise.epochs`)."""

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
            nonce: 16 random bytes, which name the epoch (`hushstream.engine.noise.epochs`).
            forked: whether a lost branch is known, and not only possible. Then the epoch opens for any kind of noise.
            incarnations: number of incarnations that have paid before, according to the zone's marks. The epoch that
                opens is one more, and those without a record in this journal are charged with it.

        Returns:
            Whether the next release opens an epoch.
        """


class Reopens(Protocol):
    """A machine that can continue after a record of its journal that its inputs no longer reproduce."""

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Adopt a journal record that the inputs no longer reproduce.

        It may be called after a `ReplayMismatch` that did not change the state. The record's release counts, and is
        never sent again. The next release opens the noise epoch after the record's own (which another state of this
        journal may have begun), and pays its price.
        """


class ReadsModels(Protocol):
    """A machine that follows published models."""

    @property
    def readers(self) -> Sequence[FollowsModels]:
        """The readers of the tracks that it follows."""


class Ticks(Protocol):
    """A machine that needs log time to advance when no records come."""

    def tick(self, idle_ms: int) -> Output | None:
        """A record to append to the home input when none came for ``idle_ms``; None if it is not needed."""


class SpillsUsers(Protocol):
    """A machine that spills users to a store of its driver."""

    def keep_users(self, store: UserStore, resident: int) -> None:
        """Use this store, and keep about ``resident`` users in memory. Must be called before `Machine.restore`."""


def waiting(machine: Machine) -> Waits | None:
    """The machine, if its records may wait."""
    found: Waits | None = _able(machine, "ends_at")
    return found


def releasing(machine: Machine) -> ReleasingMachine | None:
    """The machine, if it releases with noise."""
    found: ReleasingMachine | None = _able(machine, "request_epoch")
    return found


def reopening(machine: Machine) -> Reopens | None:
    """The machine, if it can continue after a record that its inputs no longer reproduce."""
    found: Reopens | None = _able(machine, "reopen")
    return found


def ticking(machine: Machine) -> Ticks | None:
    """The machine, if it needs log time to advance when no records come."""
    found: Ticks | None = _able(machine, "tick")
    return found


def spilling(machine: Machine) -> SpillsUsers | None:
    """The machine, if it spills users."""
    found: SpillsUsers | None = _able(machine, "keep_users")
    return found


def readers_of(machine: Machine) -> Sequence[FollowsModels]:
    """The machine's readers of published models, one for each track that it follows."""
    found: ReadsModels | None = _able(machine, "readers")
    return () if found is None else found.readers


def folds_ahead(machine: Machine) -> bool:
    """Whether the machine folds records that no record of its journal names yet, such as those of an open window."""
    return hasattr(machine, "journaled")


def float_ties(machine: Machine) -> int:
    """Number of replayed answers taken from the journal because this machine's floats differ by a rounding."""
    count: int = getattr(machine, "float_ties", 0)
    return count


def snapshot_portions(machine: Machine) -> Generator[None, None, bytes]:
    """`Machine.snapshot` in portions: it packs the state as it is at the first step, while the machine goes on folding.

    A machine with a large state has its own ``snapshot_portions``, whose steps take a few milliseconds; a small state
    is packed in one step. The last step returns the snapshot. Only one snapshot may be made at a time; close the
    generator to cancel it.
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
