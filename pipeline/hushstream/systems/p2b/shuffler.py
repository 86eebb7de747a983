"""Windows of slots: when a window closes, and which slots it holds, follows from the log alone.

A window closes on public events only (PRIVACY rule 2): on a count of slots, on the ends of a phase from all learner
partitions, or on log time. No clock is read: time is the log time of the records, and only moves forward (a log time
below the highest one counts as the highest). An empty window does not close.

A report names its period, ``floor(log time / period)``. Reports of the current and the previous period are accepted, so
a late report can never join a window that was released (SYSTEMS, P2B trap d).

Only the first slot of an id ever counts, in whatever period others come: ids are remembered for the life of the
deployment (`hushstream.engine.state.packed`). An id is a function of a user's key and the number of the slot alone
(`hushstream.systems.p2b.edge.agent`), and determines its partition. So each number of each user puts at most one
content into at most one window. That holds even if an edge is restored from an older copy and sends the number again
with other content. If ids were remembered for two periods only, this second content could count, and the user's bound
would no longer hold.

*Sums of codes.* The sums and counts that a closed window of codes releases: pure functions on whole numbers.

A window holds its slots as three columns (code, arm, level) and a mask of the slots that count; a null does not count,
nor does a report that was not sampled. Slots that do not count take the same steps, and are added to a cell outside the
domain that is dropped at the end. So the same operations run on arrays of the same sizes, whatever a window holds, and
the time of a release reveals nothing of it (except through the effect of addresses on caches). The domain is public and
finite: k codes, K arms, levels 0 to M, where a level is the reward in units of 1/M, clipped before it was rounded.

Three releases:

* `slot_sums` and `noised_sums`: per (code, arm) two sums with noise; the default.
* `tuples`: counts of whole tuples that were sampled and reach a threshold.
* `paper`: the paper's threshold on the code alone; not private as stated.

The caller draws noise and samples (keyed; see PRIVACY rules 5 to 7), so a release is a function of its arguments. Sums
and counts are int64; a window has far fewer than 2^54 slots, and this is checked.

*Linear sums.* The sums that a closed window releases, for declared features: two sums for each arm and cell, empty
cells included.

All numbers are whole. A report of arm a with level R adds ``q_j R`` to ``ones[a, j]`` and ``q_j (M - R)`` to
``zeros[a, j]`` for each of its places (j, q_j).

*Sensitivity.* Null adds nothing. A valid report has ``sum |q_j| <= U`` and ``0 <= R <= M``. So it moves both arrays
together by at most ``sum |q_j| R + sum |q_j| (M - R) = M sum |q_j| <= M U`` in L1. That holds for all places, also if
two of them name one cell (the absolute value of a sum is at most the sum of absolute values). Epsilon need not be
divided among blocks, because the units of a report are. Another report in its place moves the arrays by at most
``2 M U``, which is reached by the same places with R = 0 and R = M.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from hushstream.engine.catalogue import Catalogue
from hushstream.engine.state.packed import ID_BYTES, KnownIds
from hushstream.privacy.mechanisms.noise import checked_add
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.slots import UNITS, FeatureLayout, FeatureReports


class ShufflingError(HushstreamError):
    """A window or a release that cannot be computed. The message says what was expected and what came, no content."""


Int64 = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer]
Bools = npt.NDArray[np.bool_]

MAX_TUPLES = 1 << 26
_MAX_SLOTS = 1 << 40


@dataclass(frozen=True, slots=True)
class Domain:
    """The public domain of a report.

    Attributes:
        codes: k.
        arms: K.
        levels: M; rewards are 0/M to M/M.
    """

    codes: int
    arms: int
    levels: int

    def __post_init__(self) -> None:
        """Refuse empty domains, and domains that are too large to be released cell by cell."""
        if min(self.codes, self.arms, self.levels) < 1:
            raise ShufflingError(
                f"expected at least one code, arm and level, got {self.codes}, {self.arms}, {self.levels}"
            )
        tuples = self.cells * (self.levels + 1)
        if tuples > MAX_TUPLES:
            raise ShufflingError(f"expected a domain of at most {MAX_TUPLES} tuples, got {tuples}")

    @property
    def cells(self) -> int:
        """k K, the number of pairs of a code and an arm."""
        return self.codes * self.arms


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """The slots of one window, checked against the domain.

    Attributes:
        domain: the domain that they were checked against.
        codes: (n,) integers in [0, k).
        arms: (n,) integers in [0, K).
        levels: (n,) integers in [0, M].
        counted: (n,) bool: which of them count. Zone-private, as the other columns are; n is public.
    """

    domain: Domain
    codes: Int64
    arms: Int64
    levels: Int64
    counted: Bools

    def __post_init__(self) -> None:
        """Refuse columns of unequal length and values outside the domain."""
        columns = (self.codes, self.arms, self.levels)
        if any(column.ndim != 1 or len(column) != len(self.codes) for column in columns):
            raise ShufflingError("expected three columns of equal length, got others")
        if len(self.codes) > _MAX_SLOTS:
            raise ShufflingError(f"expected at most {_MAX_SLOTS} reports in a window, got {len(self.codes)}")
        highest = (self.domain.codes - 1, self.domain.arms - 1, self.domain.levels)
        for column, high in zip(columns, highest, strict=True):
            if column.dtype != np.int64:
                raise ShufflingError(f"expected int64 columns, got {column.dtype}")
            if len(column) and (column.min() < 0 or column.max() > high):
                raise ShufflingError(f"expected values from 0 to {high}, got one outside")
        self._require_mask(self.counted)

    @classmethod
    def of(cls, domain: Domain, codes: Integers, arms: Integers, levels: Integers) -> Reports:
        """Reports that all count, from integer columns of any width."""
        wide = [np.asarray(column).astype(np.int64, casting="safe") for column in (codes, arms, levels)]
        return cls(domain, wide[0], wide[1], wide[2], np.ones(len(wide[0]), dtype=np.bool_))

    def __len__(self) -> int:
        """The number of slots, whatever they hold."""
        return len(self.codes)

    def kept(self, mask: Bools) -> Reports:
        """The same slots, of which those where ``mask``, (n,) bool, is false no longer count."""
        self._require_mask(mask)
        return replace(self, counted=self.counted & mask)

    def _require_mask(self, mask: Bools) -> None:
        if mask.shape != self.codes.shape or mask.dtype != np.bool_:
            raise ShufflingError(f"expected a mask of {len(self)} booleans, got {mask.dtype} {mask.shape}")

    def _cells(self) -> Int64:
        """(n,) the cell of each slot; for slots that do not count, the cell after the last one.

        It is chosen by arithmetic, because an unpredictable branch takes five times as long as a predictable one.
        """
        beside = self.domain.cells
        return beside + self.counted * (self.codes * self.domain.arms + self.arms - beside)

    def _tuples(self) -> Int64:
        """(k K (M + 1),) for each tuple, in lexicographic order, how many slots that count hold it."""
        rewards = self.domain.levels + 1
        keys = self._cells() * rewards + self.levels
        return np.bincount(keys, minlength=(self.domain.cells + 1) * rewards)[: self.domain.cells * rewards]


@dataclass(frozen=True, slots=True, eq=False)
class CellSums:
    """Two sums for every (code, arm) of the domain, empty cells included; or for every arm and cell of features.

    Attributes:
        ones: (k, K) int64, the sum of levels R; for features (K, P), see `linear_sums`.
        zeros: of the same shape, the sum of M - R.
    """

    ones: Int64
    zeros: Int64


@dataclass(frozen=True, slots=True, eq=False)
class TupleCounts:
    """Sorted counts of the tuples that are released; withheld reports stay in the shuffler's zone.

    Attributes:
        codes, arms, levels: (m,) int64, lexicographically ascending and distinct.
        counts: (m,) int64, each at least the threshold.
        withheld: number of reports below the threshold. Zone-private.
    """

    codes: Int64
    arms: Int64
    levels: Int64
    counts: Int64
    withheld: int


def slot_sums(reports: Reports) -> CellSums:
    """The exact sums of every cell; never to leave the shuffler without `noised_sums`.

    A report adds R = level to ``ones`` and M - R to ``zeros`` of its one cell. So replacing a slot's report by null
    moves the two arrays by ``R + (M - R) = M`` in L1, whatever the reward is. This is the sensitivity for which the
    noise is drawn. The budget need not be divided between the two sums.
    """
    domain = reports.domain
    cells = reports._cells()
    # np.bincount with weights sums in float64; np.add.at keeps whole numbers whole.
    ones = np.zeros(domain.cells + 1, dtype=np.int64)
    np.add.at(ones, cells, reports.levels)
    zeros = np.bincount(cells, minlength=domain.cells + 1) * domain.levels - ones
    shape = (domain.codes, domain.arms)
    return CellSums(ones[:-1].reshape(shape), zeros[:-1].reshape(shape))


def tuples(reports: Reports, sampled: Bools, threshold: int) -> TupleCounts:
    """Counts of the whole tuples (code, arm, level) that enough sampled reports share.

    Args:
        reports: of one closed window.
        sampled: (n,) bool, an independent keyed coin of probability p for each report, drawn by the shuffler
            after the window has closed.
        threshold: l, the smallest count that is released.

    Raises:
        ShufflingError: a wrong mask or a threshold below 1.

    Guarantee:
        relation zero-out, unit one slot: (eps, delta) of the thresholded Bin(n, p) against Bin(n + 1, p),
        computed exactly in `hushstream.privacy.mechanisms.tuples`. The threshold counts the whole tuple: counting the
        code alone lets a unique (arm, reward) through (`paper`). Counts over the sorted domain carry no
        order that could be linked to arrival.
    """
    _require_threshold(threshold)
    counts = reports.kept(sampled)._tuples()
    return _counted(reports.domain, counts, counts >= threshold)


def paper(reports: Reports, threshold: int) -> TupleCounts:
    """Counts of the tuples whose *code* alone has enough reports, as the paper's public code does.

    The users drew the coins. All crowds are counted first and filtered afterwards. The public code removes entries
    from the list over which it iterates, so some small crowds survive there.

    Args:
        reports: of one closed window, sampled by their senders.
        threshold: l, the smallest number of reports of a code with which all of them are released.

    Raises:
        ShufflingError: a threshold below 1.

    Guarantee:
        NOT PRIVATE AS STATED: a report with an arm or level that nobody else has under a popular code is
        released as it is, which no finite eps with a small delta allows.
    """
    _require_threshold(threshold)
    counts = reports._tuples()
    crowds = counts.reshape(reports.domain.codes, -1).sum(axis=1)
    popular = np.repeat(crowds >= threshold, len(counts) // len(crowds))
    return _counted(reports.domain, counts, popular & (counts > 0))


def tuple_sums(domain: Domain, counts: TupleCounts) -> CellSums:
    """The released tuples in the form of `CellSums` (post-processing), as a crowd record carries them."""
    ones = np.zeros((domain.codes, domain.arms), dtype=np.int64)
    zeros = np.zeros_like(ones)
    np.add.at(ones, (counts.codes, counts.arms), counts.counts * counts.levels)
    np.add.at(zeros, (counts.codes, counts.arms), counts.counts * (domain.levels - counts.levels))
    return CellSums(ones, zeros)


def _counted(domain: Domain, counts: Int64, released: Bools) -> TupleCounts:
    """The counts to release, from the counts of all tuples in lexicographic order."""
    keys = np.flatnonzero(released)
    cells, levels = np.divmod(keys, domain.levels + 1)
    codes, arms = np.divmod(cells, domain.arms)
    return TupleCounts(codes, arms, levels, counts[keys], withheld=int(counts.sum() - counts[keys].sum()))


def _require_threshold(threshold: int) -> None:
    if threshold < 1:
        raise ShufflingError(f"expected a threshold of at least 1, got {threshold}")


_EXACT = 1 << 53
"""float64 holds every whole number below it exactly, in whatever order numbers are added."""


def linear_sums(layout: FeatureLayout, reports: FeatureReports, counted: Bools) -> CellSums:
    """The exact sums of a window, (K, P) each; never to leave the shuffler without `noised_sums`.

    A slot that does not count takes the same steps, but is added to an extra cell that is dropped at the end.

    Args:
        layout: the deployment's layout.
        reports: the reports of the window's slots, as `unpack_reports` checked them.
        counted: (n,) bool, which of them count (the secret coin kept the slot, and its catalogue is current).

    Raises:
        ShufflingError: the mask has another shape, or there are too many slots for exact sums.
    """
    size = len(reports.held)
    if counted.shape != (size,) or counted.dtype != np.bool_:
        raise ShufflingError(f"expected a mask of {size} booleans, got {counted.dtype} {counted.shape}")
    if size * UNITS * layout.levels >= _EXACT:
        raise ShufflingError(f"expected at most {_EXACT // (UNITS * layout.levels)} slots in a window, got {size}")
    beside = layout.arms * layout.cells
    kept = (counted & reports.held)[:, None]
    places = beside + kept * (reports.arms[:, None] * layout.cells + reports.cells - beside)
    keys, units = places.ravel(), reports.units.ravel()
    rewarded = (reports.units * reports.levels[:, None]).ravel()
    total = np.bincount(keys, units, minlength=beside + 1)[:beside].astype(np.int64)
    ones = np.bincount(keys, rewarded, minlength=beside + 1)[:beside].astype(np.int64)
    shape = (layout.arms, layout.cells)
    return CellSums(ones.reshape(shape), (layout.levels * total - ones).reshape(shape))


def noised_sums(sums: CellSums, noise: Int64) -> CellSums:
    """Add one integer of noise to every sum.

    Args:
        sums: exact sums.
        noise: (2, ...) int64, independent discrete Laplace, first for ``ones``: for features (2, K, P) of scale
            M U/eps, for codes (2, k, K) of scale M/eps.

    Raises:
        BadNoise: another shape or type, or a sum beyond 64 bits.

    Guarantee:
        relation zero-out, unit one slot: with that noise the result is eps-differentially private (module;
        `slot_sums`), with delta the truncation error of the sampler
        (`hushstream.privacy.mechanisms.guarantee.linear_sums_guarantee`, `slot_sums_guarantee`). A report against
        another report costs 2 eps.
    """
    ones, zeros = checked_add(np.stack([sums.ones, sums.zeros]), noise)
    return CellSums(ones, zeros)


_MAGIC = b"HWIN"
_VERSION = 3
_HEADER = struct.Struct("<4sBxxxqqqqIII")
_ORIGIN = struct.Struct("<iq")
_CATALOGUE = struct.Struct("<i")
_NEVER = -1


class SlotOutcome(StrEnum):
    """The outcome of a slot report; the names are fixed, so that metrics can use them as labels."""

    JOINED = "joined"
    REPEATED = "repeated"
    LATE = "late"
    EARLY = "early"


class ClosedBy(StrEnum):
    """Why a window closed."""

    SLOTS = "slots"
    SEAL = "seal"
    TIME = "time"


class ItemRows(NamedTuple):
    """The items that the rows of sums stand for, where features are declared.

    Attributes:
        catalogue: version of the catalogue.
        entries: little-endian int32, the version at which each row's item entered; 0 for a row that never had one.
        features: the public features of each row's item, row after row; empty if none are declared.
    """

    catalogue: int
    entries: bytes
    features: bytes = b""

    @classmethod
    def of(cls, catalogue: Catalogue) -> ItemRows:
        """The rows of a catalogue as it is now."""
        return cls(catalogue.version, catalogue.entries.astype("<i4").tobytes(), catalogue.features.tobytes())

    def current(self, arms: NDArray[np.int64], catalogues: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) which slots are about the items that the rows stand for now.

        A slot whose version is older than the entry of its row's item is about an earlier item of the row. If it
        counted, it would count for the new item. A version that is not known here yet may have given the row to another
        item, so such a slot does not count either.

        Args:
            arms: (n,) the rows that slots name, all below the number of rows.
            catalogues: (n,) the versions that slots name.
        """
        entered = np.frombuffer(self.entries, "<i4").astype(np.int64)[arms]
        return (entered > 0) & (entered <= catalogues) & (catalogues <= self.catalogue)


class ClosedWindow(NamedTuple):
    """A closed window; nothing is added to it any more.

    Attributes:
        window: its number: 0, 1, 2, ... without a gap.
        closed_by: the rule that closed it.
        contents: the contents of its slots, nulls included, in the order of their (keyed) ids. So a slot's coin depends
            on which slots the window holds, and not on the order in which they came.
        ids: the ids of its slots, in that order; empty if slots have none (audits of one release).
        item_rows: the items of the rows when it closed; None in a deployment of codes.
    """

    window: int
    closed_by: ClosedBy
    contents: tuple[bytes, ...]
    ids: tuple[bytes, ...] = ()
    item_rows: ItemRows | None = None


class Offer(NamedTuple):
    """The outcome of a slot, and the window that it closed, if any."""

    outcome: SlotOutcome
    closed: ClosedWindow | None


@dataclass(frozen=True, slots=True)
class WindowRules:
    """When windows close; all public configuration.

    Attributes:
        slots: a window closes when it holds this many slots.
        origins: the learner partitions; a phase ends when all of them have ended it.
        period_ms: length of a report period in log time.
        open_ms: a window also closes this long (log time) after its first slot; None: time closes no window.
        content_bytes: the size of every slot's content.
        item_rows: the items of the rows before any record of a learner; None in a deployment of codes.
        known: ids that were counted before (`KnownIds.dump`): a generation before this one has paid for them.
    """

    slots: int
    origins: frozenset[int]
    period_ms: int
    open_ms: int | None = None
    content_bytes: int = 32
    item_rows: ItemRows | None = None
    known: bytes = KnownIds().dump()

    def __post_init__(self) -> None:
        """Refuse rules under which nothing could close."""
        if self.slots < 1 or self.period_ms < 1 or self.content_bytes < 1 or not self.origins:
            raise ShufflingError("expected at least one slot, origin, content byte and millisecond a period")
        if self.open_ms is not None and self.open_ms < 1:
            raise ShufflingError(f"expected a window to stay open at least 1 ms, got {self.open_ms}")


class Windows:
    """The state of one reports partition: the open window, the phase ends so far, and the remembered ids."""

    def __init__(self, rules: WindowRules) -> None:
        self.rules = rules
        self.window = 0
        """The number of the open window."""
        self.log_time_ms = 0
        """The highest log time seen."""
        self.ended_phase = _NEVER
        """The last phase that all origins have ended; -1 before the first."""
        self._opened_ms = 0
        self._slots: list[tuple[bytes, bytes]] = []
        self._phases: dict[int, int] = dict.fromkeys(sorted(rules.origins), _NEVER)
        self._ids = KnownIds.load(rules.known)
        self.item_rows = rules.item_rows
        """The items of the rows of sums, by the newest record of a learner; None in a deployment of codes."""

    @property
    def slots(self) -> int:
        """How many slots the open window holds."""
        return len(self._slots)

    @property
    def period(self) -> int:
        """The current report period."""
        return self.log_time_ms // self.rules.period_ms

    @property
    def remembered(self) -> int:
        """How many report ids are remembered: as many as slots have ever joined."""
        return len(self._ids)

    @property
    def ids(self) -> bytes:
        """All remembered ids, as `KnownIds.dump` writes them."""
        return self._ids.dump()

    def advance(self, log_time_ms: int) -> ClosedWindow | None:
        """Move log time forward (call it for every record, before what the record does).

        Returns:
            The window that log time has closed; the current record belongs to the next window.
        """
        self.log_time_ms = max(self.log_time_ms, log_time_ms)
        open_ms = self.rules.open_ms
        if open_ms is not None and self._slots and self.log_time_ms - self._opened_ms >= open_ms:
            return self._close(ClosedBy.TIME)
        return None

    def offer(self, report_id: bytes, period: int, content: bytes) -> Offer:
        """Let a slot report join the open window, once.

        Args:
            report_id: `ID_BYTES` opaque bytes.
            period: the period that the report names.
            content: opaque bytes of the fixed size.

        Raises:
            ShufflingError: an id or content of another size.
        """
        if len(report_id) != ID_BYTES or len(content) != self.rules.content_bytes:
            raise ShufflingError(
                f"expected an id of {ID_BYTES} and a content of {self.rules.content_bytes} bytes,"
                f" got {len(report_id)} and {len(content)}"
            )
        current = self.log_time_ms // self.rules.period_ms
        if not current - 1 <= period <= current:
            outside = SlotOutcome.EARLY if period > current else SlotOutcome.LATE
            return Offer(SlotOutcome.REPEATED if report_id in self._ids else outside, None)
        if not self._ids.add(report_id):
            return Offer(SlotOutcome.REPEATED, None)
        if not self._slots:
            self._opened_ms = self.log_time_ms
        self._slots.append((report_id, content))
        full = len(self._slots) >= self.rules.slots
        return Offer(SlotOutcome.JOINED, self._close(ClosedBy.SLOTS) if full else None)

    def follow(self, rows: ItemRows) -> None:
        """Take over the items that rows stand for from now on; an older version changes nothing.

        Raises:
            ShufflingError: this is a deployment of codes, or there is another number of rows.
        """
        known = self.item_rows
        sizes = None if known is None else (len(known.entries), len(known.features))
        if known is None or (len(rows.entries), len(rows.features)) != sizes or rows.catalogue < 1:
            raise ShufflingError("expected as many rows of a catalogue as there are, got others")
        if rows.catalogue > known.catalogue:
            self.item_rows = rows

    def end_phase(self, phase: int, origin: int) -> ClosedWindow | None:
        """Note that a learner partition has sent all slots of a phase, and of all phases before it.

        Returns:
            The open window, if this was the last origin that the phase waited for and it holds a slot.

        Raises:
            ShufflingError: an origin that is no learner partition, or a negative phase.
        """
        if origin not in self._phases or phase < 0:
            raise ShufflingError("expected the end of a phase of a known learner partition and phase, got another")
        self._phases[origin] = max(self._phases[origin], phase)
        complete = min(self._phases.values())
        if complete == self.ended_phase:
            return None
        self.ended_phase = complete
        return self._close(ClosedBy.SEAL) if self._slots else None

    def _close(self, closed_by: ClosedBy) -> ClosedWindow:
        ids, contents = zip(*sorted(self._slots), strict=True)
        closed = ClosedWindow(self.window, closed_by, contents, ids, self.item_rows)
        self.window += 1
        self._slots = []
        return closed

    def dump(self) -> bytes:
        """The state as bytes; equal states give equal bytes. The rules are not in it."""
        parts = [
            _HEADER.pack(
                _MAGIC,
                _VERSION,
                self.window,
                self.log_time_ms,
                self.ended_phase,
                self._opened_ms if self._slots else 0,
                self.rules.content_bytes,
                len(self._slots),
                len(self._phases),
            ),
            *(part for slot in self._slots for part in slot),
            *(_ORIGIN.pack(origin, phase) for origin, phase in sorted(self._phases.items())),
            *(() if self.item_rows is None else (_CATALOGUE.pack(self.item_rows.catalogue), *self.item_rows[1:])),
            self._ids.dump(),
        ]
        return b"".join(parts)

    @classmethod
    def load(cls, rules: WindowRules, dumped: bytes) -> Windows:
        """The state that `dump` wrote under the same rules.

        Raises:
            ShufflingError: these are not such bytes, or they were written under other rules.
        """
        windows = cls(rules)
        try:
            header = _HEADER.unpack_from(dumped)
            magic, version, window, log_time_ms, ended_phase, opened_ms, size, slots, origins = header
            if magic != _MAGIC or version != _VERSION or size != rules.content_bytes:
                raise ShufflingError("expected windows of this version and content size, got others")
            position = _HEADER.size
            for _ in range(slots):
                content = position + ID_BYTES
                windows._slots.append((dumped[position:content], dumped[content : content + size]))
                position = content + size
            phases = [_ORIGIN.unpack_from(dumped, position + i * _ORIGIN.size) for i in range(origins)]
            position += origins * _ORIGIN.size
            if rules.item_rows is not None:
                (catalogue,) = _CATALOGUE.unpack_from(dumped, position)
                entries = position + _CATALOGUE.size
                features = entries + len(rules.item_rows.entries)
                position = features + len(rules.item_rows.features)
                windows.item_rows = ItemRows(catalogue, dumped[entries:features], dumped[features:position])
        except struct.error:
            raise ShufflingError("expected dumped windows, got bytes that end too early") from None
        if {origin for origin, _ in phases} != rules.origins:
            raise ShufflingError("expected windows of these origins, got others")
        windows._ids = KnownIds.load(dumped[position:])
        windows._phases = dict(phases)
        windows.window, windows.log_time_ms = window, log_time_ms
        windows.ended_phase, windows._opened_ms = ended_phase, opened_ms
        return windows
