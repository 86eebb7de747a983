"""The counter role, in a zone of its own: it reads outcomes in clear, and releases disjoint noised blocks.

A window closes after a number of outcomes, after a log time since its first outcome, or at a phase end. All of these
are public. A window takes whole records. The release is a function of the set of outcomes, the key and the journal's
genesis: rows are sorted by name, so the order in which partitions of learners arrive does not matter. Epsilon is paid
once, with the first record of a noise epoch, for any number of windows, because each outcome is in one block
(see *Pending*).

If a journal record can no longer be computed from its inputs (`ReopeningRole`), the outcomes that it may
have released go on waiting. They may be released a second time, under the noise of the next epoch, which is charged
again. The noise address depends on all outcomes so far. So a journal that was rolled back either has the same outcomes,
or draws other noise. An epoch that a key rotation begins takes the waiting outcomes, none of which was released.

A vendor that retires or offers an item also closes the window; its record is forwarded after the release. The change
has no other effect on the counter: outcomes of items that were shown before still count.

*Pending.* Makes disjoint noised blocks of outcomes; the counter alone holds rewards.

Every outcome enters the pending row of one (cell, arm): the cell that served its context, and the arm that was shown.
At the close of a window `blocks.close` forms blocks; each is released once, as (n, s + noise), and its outcomes are
forgotten.

Guarantee:
    Put another reward in place of one event's, everything public (cells, arms, times, who was served by whom, that
    and when the outcome counts) being the same. Claim: the joint law of all that is ever released changes by at most
    e^eps, eps the largest level's epsilon.

    *Disjoint.* An outcome is in one pending row; `blocks.close` puts a row into one block or leaves it; a released
    row is dropped. So each outcome enters one block, ever, and the vector of all exact block sums moves by at most R
    in L1, in one entry.

    *Given equal earlier releases everything else is equal.* Run both histories with the same coins, except that the
    noise z of the block B that holds the event is z' = z + (r - r') in the other. Then up to B's release both are the
    same: arms are a function of contexts, models and tickets' coins; models of releases; membership and windows of
    counts. At B the noised sum is s + z = s' + z'. So all that follows is the same too, also what an adversary chooses
    by it: contexts, later rewards, when to ask. Counts alone decide which block is B, so B is the same in both, and z
    -> z' is one to one.

    *Price.* Only B's noise has another value: its probability changes by e^(|r - r'| / (R / eps_l)) <= e^eps_l at
    most, l the level of B. Pure eps_l <= max_l eps_l; the noise tables are off by one draw's truncation error.
    c events of one person: at most c noises move, by R each: c eps (group privacy, through hybrids).

    *What would break it*: a window that a reward closes, a size that is tested on rewards, a block released twice, an
    arm chosen by somebody who has seen rewards. `hushstream.replay.studies.pdap.audits` plays all of these.

*Disjoint.* Checks from the logs alone that no outcome is in two blocks, independently of the counter's code.

`verify` recomputes a counter's records with the counter's own code, and would repeat its mistakes. This check follows
every outcome by its name instead: at most one block takes it, of its arm and of a cell above it, and a block has
exactly the number of outcomes that wait there. So the blocks are disjoint sets of outcomes, whatever code made them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.batch import Batch, Refused
from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import PHASE_ENDS, PhaseEnds, Read, ReopeningRole, releasing_state
from hushstream.engine.records import InputRecord, InputSlice, Output, Step, TopicPartition
from hushstream.engine.state.declared import FIXED, Flat, integer, known_ids, own_part
from hushstream.engine.state.declared import record as avro_record
from hushstream.engine.state.packed import KnownIds
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import checked_add
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.topics import of_party
from hushstream.systems.pdap.algorithm.aggregate import NAME_BYTES, ROW, Outcomes, Release
from hushstream.systems.pdap.algorithm.blocks import MECHANISM, BlockNoise, Blocks, close, gathered
from hushstream.systems.pdap.cells import Grid, Int64, PdapError, levels_of
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.deployment import ARM_CHANGED, BEYOND_HORIZON, PdapRefusal, PdapSystem
from hushstream.systems.pdap.promise import COUNTER_ZONE
from hushstream.systems.pdap.records import parse_outcomes, parse_part, release_parts

_HISTORY_BYTES = 32
_COLUMNS = ("cells", "arms", "counts", "sums")

COUNTER = {
    "window": "long",
    "taken": "long",
    "history": "bytes",
    **dict.fromkeys((*_COLUMNS, "rows", "arrivals"), "bytes"),
}
"""Avro fields of `Counter.dump`."""


class Counter:
    """Pending outcomes of one counter; see the module for what its releases promise.

    Attributes:
        window: the number of the open window.
        taken: number of outcomes ever taken; public.
        noise: of the epoch.
        history: digest of all outcomes of closed windows.
    """

    def __init__(self, config: PdapConfig, noise: BlockNoise) -> None:
        """Begin before the first outcome.

        Args:
            config: of the deployment.
            noise: keyed, except in audits.
        """
        self.window = 0
        self.taken = 0
        self._config = config
        self.noise = noise
        self._grid, self._schedule, self._least_counts = config.grid, config.schedule, config.least_counts
        self._largest = {"arms": config.arms - 1, "rewards": config.release.reward_levels}
        """The largest value in a column of outcomes."""
        self._pending = Blocks.none()
        self._fresh: list[Blocks] = []
        self._arrivals: list[Int64] = []
        self._rows: list[NDArray[np.void]] = []
        self.history = bytes(_HISTORY_BYTES)
        self._open_at(0)

    @property
    def capacity_left(self) -> int:
        """Outcomes until the open window closes; 0: it must close first."""
        return self._closes_at - self.taken

    @property
    def open_outcomes(self) -> int:
        """Outcomes in the open window."""
        return self.taken - self._opened_at

    def _open_at(self, taken: int) -> None:
        """The number of taken outcomes at which the open window began."""
        self._opened_at, self._closes_at = taken, self._schedule.after(taken)

    def take(self, outcomes: Outcomes) -> None:
        """Take outcomes into the open window.

        Raises:
            PdapError: an invalid column, cell, arm or reward, or more outcomes than the horizon. No outcome is taken
                then. The message repeats no reward.
        """
        self.require(outcomes)
        if self.taken + len(outcomes) > self._config.release.horizon:
            raise PdapError(
                f"outcomes: expected at most {self._config.release.horizon} ever, got {self.taken} and"
                f" {len(outcomes)} more"
            )
        self.take_checked(outcomes)

    def take_checked(self, outcomes: Outcomes) -> None:
        """See `take`; the caller must have checked the outcomes (`require`) and the horizon."""
        rows = outcomes.rows()
        ones = np.ones(len(rows), dtype=np.int64)
        self._fresh.append(Blocks(outcomes.cells, outcomes.arms, ones, outcomes.rewards))
        self._arrivals.append(outcomes.arrivals)
        self._rows.append(rows)
        self.taken += len(rows)

    def close(self, window: int) -> Release:
        """Close the open window and release its blocks; outcomes of blocks that are too small go on waiting.

        Args:
            window: its number; the caller decides by public facts alone when it closes.

        Raises:
            PdapError: it is not the open window: a window closes once.
        """
        if window != self.window:
            raise PdapError(f"window: expected {self.window} to close, got {window}")
        blocks, self._pending = close(self._grid, self.pending, self._least_counts)
        arrived, arrivals = self._next()
        noise = self.noise(window, blocks, self.history)
        noised = Blocks(blocks.cells, blocks.arms, blocks.counts, checked_add(blocks.sums, noise))
        return Release(window, noised, arrived, arrivals, int(arrivals.sum()))

    def withhold(self) -> None:
        """Close the open window without a release; all outcomes go on waiting."""
        self._pending = self.pending
        self._next()

    def _next(self) -> tuple[Int64, Int64]:
        """Open the next window; returns the cells in which contexts arrived in this one, and their numbers."""
        # The digest covers all outcomes ever, not the blocks alone: otherwise two histories with other events but equal
        # sums would get the same noise, and show that their sums are equal. Rows are sorted by name, so that the order
        # in which learners send outcomes does not matter.
        rows = np.sort(np.concatenate([*self._rows, np.zeros(0, dtype=ROW)]))
        self.history = blake2b(self.history + rows.tobytes(), digest_size=_HISTORY_BYTES).digest()
        arrived, arrivals = np.unique(
            np.concatenate([*self._arrivals, np.zeros(0, dtype=np.int64)]), return_counts=True
        )
        self._fresh, self._arrivals, self._rows = [], [], []
        self.window += 1
        self._open_at(self.taken)
        return arrived, arrivals.astype(np.int64)

    def dump(self) -> dict[str, Any]:
        """The state in packed form (`COUNTER`); as sensitive as the rewards."""
        waiting = self.pending
        columns = {name: getattr(waiting, name).astype("<i8").tobytes() for name in _COLUMNS}
        return {
            "window": self.window,
            "taken": self.taken,
            "history": self.history,
            **columns,
            "rows": b"".join(rows.tobytes() for rows in self._rows),
            "arrivals": b"".join(cells.astype("<i8").tobytes() for cells in self._arrivals),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a dumped state."""
        self.window, self.taken, self.history = state["window"], state["taken"], bytes(state["history"])
        self._pending = Blocks(*(np.frombuffer(state[name], "<i8").astype(np.int64) for name in _COLUMNS))
        self._fresh = []
        self._rows = [np.frombuffer(state["rows"], ROW)]
        self._arrivals = [np.frombuffer(state["arrivals"], "<i8").astype(np.int64)]
        self._open_at(self.taken - len(self._arrivals[0]))

    @property
    def pending(self) -> Blocks:
        """The waiting outcomes: one row for each (cell, arm) with exact sums; as sensitive as the rewards."""
        return gathered([self._pending, *self._fresh])

    def require(self, outcomes: Outcomes) -> None:
        """Refuse invalid outcomes.

        Raises:
            PdapError: an invalid column, cell, arm or reward; the message repeats no reward.
        """
        count, columns = len(outcomes), (outcomes.cells, outcomes.arrivals, outcomes.arms, outcomes.rewards)
        if any(column.dtype != np.int64 or column.shape != (count,) for column in columns):
            raise PdapError("outcomes: expected four int64 columns of one length, got others")
        if outcomes.names.dtype != np.uint8 or outcomes.names.shape != (count, NAME_BYTES):
            raise PdapError(f"outcomes: expected names uint8 {(count, NAME_BYTES)}, got others")
        levels, arrived = self._grid.require(outcomes.cells), self._grid.require(outcomes.arrivals)
        below = np.array_equal(arrived, np.minimum(levels + 1, self._grid.levels))
        if not below or not np.array_equal(self._grid.ancestors(outcomes.arrivals, levels), outcomes.cells):
            raise PdapError("outcomes: expected arrivals in a child of the serving cell, got another cell")
        for name, limit in self._largest.items():
            values = getattr(outcomes, name)
            if len(values) and not (values.min() >= 0 and values.max() <= limit):
                raise PdapError(f"outcomes: expected {name} from 0 to {limit}, got one outside")


_KINDS = frozenset({"Outcomes", "ArmChange", "Seal", "Tick"})

COUNT, SEAL = "count", "seal"
"""What closed a window, as records say it. COUNT: a number of outcomes, log time, or a change of the catalogue. SEAL:
the end of a phase."""


class Closing(NamedTuple):
    """What closes a window.

    Attributes:
        by: `COUNT` or `SEAL`.
        change: the record that changes the catalogue, if it closes the window.
    """

    by: str
    change: Mapping[str, Any] | None = None


class BlockCounterMachine(ReopeningRole):
    """The counter of all vendors' outcomes, or of those of one home vendor."""

    state = releasing_state(
        "a counter of blocks' state",
        "BlockCounterState",
        noise="redraw_noise",
        open_since_ms=integer(),
        phase_ends=Flat(PHASE_ENDS),
        known=known_ids(),
        counter=own_part(avro_record("Counter", **COUNTER)),
    )
    derived: ClassVar[Mapping[str, str]] = {"vendor": FIXED, "number": FIXED}

    system: PdapSystem

    def __init__(self, system: PdapSystem, key: Key, ring: KeyRing | None = None, vendor: str = "") -> None:
        """Bind to a deployment, the key that its journal begins with, the zone's key file, a home vendor if any."""
        identity = Identity.of(system, "counter", of_party("journal-counter", vendor), 0)
        source, zone = (of_party("outcomes", vendor), 0), of_party(COUNTER_ZONE, vendor)
        super().__init__(system, identity, "BlockJournal", source, zone, key, ring)
        self.vendor = vendor
        self.number = system.homes[vendor] if vendor else 0
        self.open_since_ms = 0
        """Log time of the first outcome of the open window, if it has any."""
        self.phase_ends = PhaseEnds(system.origins)
        self.known = KnownIds()
        """Names of all outcomes ever: a sender that died after a release sends its outcomes again, at any later
        time."""
        self.counter = Counter(system.config, system.noise(key, b"", 0, self.number))

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.redraw_noise()

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each window that closes, and one for what is left."""
        batch = Batch(self)
        for one in self.read(slices, _KINDS):
            closing = self._closing(one, batch)
            if closing is not None:
                self._release(closing, one.record.offset + 1, batch)
        self.require_followed()
        self._settle(batch)
        return self.finished(slices, batch)

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.reopen`: outcomes that the record may have released wait for the next epoch."""
        fields = self.chain.accept(value, self.committed())
        batch = Batch(self)
        for one in self.read(slices, _KINDS):
            self._closing(one, batch)
        self._settle(batch)
        self.counter.withhold()
        self.counter.window = fields["window"] + 1
        return self.reopened(fields, self.charge, batch)

    # One record.

    def _closing(self, one: Read, batch: Batch) -> Closing | None:
        """Take one record; returns what closes the window with it, if anything.

        Late outcomes still join the open window.
        """
        closing = self.accept(one, batch, self._take)
        # A count of outcomes, or log time; both are public.
        # An empty window has nothing new to release.
        open_ms, waits = self.system.open_ms, self.counter.open_outcomes > 0
        late = open_ms is not None and waits and one.record.timestamp_ms - self.open_since_ms >= open_ms
        return closing or (Closing(COUNT) if late or self.counter.capacity_left <= 0 else None)

    def _take(self, one: Read, batch: Batch) -> Closing | None:
        if one.name == "Seal":
            # A phase end is forwarded, so even an empty window closes.
            return Closing(SEAL) if self.ends_phase(one.fields, batch) else None
        if one.name == "ArmChange":
            return self._changed(one.fields, batch)
        if one.name == "Tick":
            batch.counts[Outcome.TICK] += 1
        else:
            self._on_outcomes(one.fields, one.record, batch)
        return None

    def _changed(self, fields: dict[str, Any], batch: Batch) -> Closing:
        # The sending vendor is known here only if each vendor has a counter of its own.
        reason = self.system.bad_change(fields["arm"], self.number if self.vendor else None)
        if reason is not None:
            raise Refused(reason)
        batch.counts[ARM_CHANGED] += 1
        return Closing(COUNT, fields)

    def _on_outcomes(self, fields: dict[str, Any], record: InputRecord, batch: Batch) -> None:
        if fields["counter"] != self.number:
            raise Refused(PdapRefusal.OTHER_COUNTER)
        try:
            outcomes = parse_outcomes(fields)
            self.counter.require(outcomes)
        except PdapError:
            raise Refused(PdapRefusal.MALFORMED_OUTCOMES) from None
        first, capacity = self._first_times(outcomes, batch), self.system.config.release.horizon - self.counter.taken
        if len(first) > capacity:
            batch.counts[BEYOND_HORIZON] += len(first) - capacity
            first = first[:capacity]
        if len(first):
            if not self.counter.open_outcomes:
                self.open_since_ms = record.timestamp_ms
            self.counter.take_checked(outcomes.take(first))
            batch.counts[Outcome.REWARD_TAKEN] += len(first)

    def _first_times(self, outcomes: Outcomes, batch: Batch) -> Int64:
        """The rows whose names were not met before: an outcome counts once."""
        first = []
        for row, name in enumerate(map(bytes, outcomes.names)):
            if name in self.known or name.hex() in batch.ids:
                batch.counts[Outcome.REPEATED_REWARDS] += 1
            else:
                batch.ids[name.hex()] = None
                first.append(row)
        return np.array(first, dtype=np.int64)

    def _settle(self, batch: Batch) -> None:
        """Remember the names of the input, because it now counts."""
        for name in batch.ids:
            self.known.add(bytes.fromhex(name))
        batch.ids.clear()

    # One window.

    def _release(self, closed: Closing, high: int, batch: Batch) -> None:
        """Release the open window, which closed with the input below ``high``; an epoch has one price."""
        counter = self.counter
        outcomes, window = counter.open_outcomes, counter.window
        batch.release(partial(self._draw, closed, batch))
        fields = {
            "window": window,
            "outcomes": outcomes,
            "taken": counter.taken,
            "closed_by": closed.by,
            "mechanism": MECHANISM,
            "parameters": self.system.parameters,
            "history": self.key.digest("outcomes", counter.history),
        }
        self.end(high, fields, batch)
        self._settle(batch)

    def _draw(self, closed: Closing, batch: Batch, charge: ChargeResult) -> list[Output]:
        """The blocks of the open window; where the price is refused, all outcomes go on waiting.

        Nobody has seen a result yet: after a crash here, the same address gives the same draw.
        """
        window, outputs = self.counter.window, []
        if charge.refused:
            self.counter.withhold()
        else:
            outputs = self._released(self.counter.close(window), closed.by)
        if charge.opens:
            outputs.append(batch.ledger_entry(self._release_id(window, 0), charge, of_party("ledger", self.vendor)))
        return [*outputs, *self._passed_on(closed)]

    def redraw_noise(self) -> None:
        """See `BatchMachine.redraw_noise`: waiting outcomes get the noise of this epoch, whatever they had before.

        After a key rotation that costs nothing, as none of them was released.
        """
        key, nonce = self.releases.key, self.releases.nonce
        self.counter.noise = self.system.noise(key, nonce, self.releases.epoch.number, self.number)

    def _released(self, release: Release, closed_by: str) -> list[Output]:
        system = self.system
        head = {
            "config_digest": system.digest,
            "counter": self.number,
            "epoch": self.releases.epoch.number,
            **system.stated[system.as_stated(self.releases.key.reproducible)],
            "closed_by": closed_by,
            "phase": self.phase_ends.complete if closed_by == SEAL else -1,
        }
        parts = [
            {"release_id": self._release_id(release.window, part["part"]), **head, **part}
            for part in release_parts(release)
        ]
        return [Output("releases", 0, codec.encode("BlockRelease", fields)) for fields in parts]

    def _passed_on(self, closed: Closing) -> tuple[Output, ...]:
        """The phase end, or the change of the catalogue, that is forwarded to the aggregator."""
        if closed.change is not None:
            return (Output("releases", 0, codec.encode("ArmChange", closed.change)),)
        if closed.by != SEAL:
            return ()
        fields = {
            "phase": self.phase_ends.complete,
            "origin": self.number,
            "config_digest": self.system.digest,
            "after_click": -1,
        }
        return (Output("releases", 0, codec.encode("Seal", fields)),)

    def _release_id(self, window: int, part: int) -> bytes:
        place = struct.pack("<qqqq", self.number, self.releases.epoch.number, window, part)
        return self.releases.key.digest("release-id", self.releases.nonce, place)

    # What a driver asks.

    def tick(self, idle_ms: int) -> Output | None:
        """See `Machine.tick`: while a window with outcomes is open."""
        open_ms = self.system.open_ms
        return self.tick_record() if open_ms is not None and self.counter.open_outcomes and idle_ms >= open_ms else None


class Records(Protocol):
    """A partition of a copy of the logs."""

    @property
    def records(self) -> Sequence[InputRecord]: ...
    def read(self, low: int, high: int) -> Sequence[InputRecord]: ...


class Logs(Protocol):
    """A copy of the logs."""

    def part(self, source: TopicPartition) -> Records: ...


Place = tuple[int, int]
"""Cell and arm."""


def overlaps(system: PdapSystem, home: int, logs: Logs, party: str = "") -> Iterator[tuple[int, str]]:
    """Blocks with an outcome that is in another block, or never came: (offset in the journal, reason).

    Args:
        system: the deployment.
        home: 0; a counter has one partition.
        logs: a copy in which its journal and its input begin at their beginning.
        party: the home vendor whose counter it is; "" for the one counter.
    """
    number = system.homes[party] if party else 0
    released = _released(logs, number)
    source, waiting = logs.part((of_party("outcomes", party), home)), _Waiting(system, number)
    for offset, window, low, high in _windows(logs.part((of_party("journal-counter", party), home))):
        for record in source.read(low, high):
            waiting.take_record(record.value)
        for block, count in released.get(window, ()):
            found = waiting.take(*block)
            if found != count:
                yield offset, f"window {window}: a block of {count} outcomes where {found} were in no block yet"


def _windows(journal: Records) -> Iterator[tuple[int, int, int, int]]:
    """Offset, window and input range of each journal record that counts."""
    sequence, position = 0, 0
    for record in journal.records[1:]:
        fields = codec.decode(record.value)[1]
        ((_, _, low, high),) = (tuple(part.values()) for part in fields["head"]["inputs"])
        if (fields["head"]["sequence"], low) == (sequence + 1, position):
            sequence, position = sequence + 1, high
            yield record.offset, fields["window"], low, high


def _released(logs: Logs, number: int) -> Mapping[int, list[tuple[Place, int]]]:
    """The blocks of each window, deepest first; repeated records are recognised by their name."""
    found: dict[int, list[tuple[Place, int]]] = {}
    known = set()
    for record in logs.part(("releases", 0)).records:
        name, fields = codec.decode(record.value)
        if name != "BlockRelease" or fields["counter"] != number or fields["release_id"] in known:
            continue
        known.add(fields["release_id"])
        blocks = parse_part(fields).blocks
        columns = (blocks.cells.tolist(), blocks.arms.tolist(), blocks.counts.tolist())
        found.setdefault(fields["window"], []).extend(((c, k), n) for c, k, n in zip(*columns, strict=True))
    return found


class _Waiting:
    """Outcomes that are in no block yet, by arm and cell. Each name counts once, at any time."""

    def __init__(self, system: PdapSystem, number: int) -> None:
        self._system, self._number = system, number
        self._grid: Grid = system.config.grid
        self._checks = Counter(system.config, _no_noise)
        self._names: set[bytes] = set()
        self._by_arm: dict[int, dict[int, int]] = {}

    def take_record(self, value: bytes) -> None:
        """Take a record of the counter's input; outcomes that the counter refuses wait for no block."""
        try:
            name, fields = codec.decode(value, frozenset({"Outcomes", "Seal", "Tick"}))
            if name == "Outcomes" and self._of_this_counter(fields):
                self._add(parse_outcomes(fields))
        except (CodecError, PdapError):
            return

    def take(self, cell: int, arm: int) -> int:
        """Take the outcomes that wait below a cell; returns their number."""
        there = self._by_arm.get(arm, {})
        if not there:
            return 0
        cells = np.array(list(there), dtype=np.int64)
        level = int(levels_of(np.array([cell], dtype=np.int64))[0])
        deep = cells[levels_of(cells) >= level]
        below = deep[self._grid.ancestors(deep, level) == cell]
        return sum(there.pop(one) for one in below.tolist())

    def _of_this_counter(self, fields: Mapping[str, Any]) -> bool:
        return (fields["config_digest"], fields["counter"]) == (self._system.digest, self._number)

    def _add(self, outcomes: Outcomes) -> None:
        self._checks.require(outcomes)
        horizon = self._system.config.release.horizon
        for name, cell, arm in zip(outcomes.names, outcomes.cells.tolist(), outcomes.arms.tolist(), strict=True):
            if name.tobytes() not in self._names and len(self._names) < horizon:
                self._names.add(name.tobytes())
                there = self._by_arm.setdefault(arm, {})
                there[cell] = there.get(cell, 0) + 1


def _no_noise(window: int, blocks: Any, history: bytes) -> Any:
    raise AssertionError("nothing is released here")
