"""One batch of a learner: it merges the inputs in a fixed order, and collects their results.

Inputs are merged by log time; at equal log times clicks come first, then changes of the catalogue, then models, then
contexts. If a record's log time is earlier than its predecessor's, it is treated as if it had the predecessor's log
time. A context that names a click (``after_click``) comes after that click if the click is at most
`CLICK_CLOCK_MARGIN_MS` younger. Only contexts and phase ends advance log time; a click never does. So neither a click
nor a missing click changes which records leave this role, or when, or which of them leave together. Feedback is in time
if its own log time is before the deadline of its decision.

Therefore the boundaries of batches change no output, if no batch holds a context while another input still has earlier
records. `hushstream.agents.partition.schedule` ensures this, if the next records of a log have later log times than
those read so far. Feedback that comes before its context waits in a store of limited capacity
(`feedback.early_feedback`), which all users of a partition share. When a flood fills the store, one user's click may
displace feedback of another user; it never changes which records leave, or when. In systems where early feedback does
change this, each user has a capacity of their own, and rewards do not count against it.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.batch import WHOLE_RECORD, Batch
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.arrivals import CLICK_CLOCK_MARGIN_MS, DecodedContexts, Pieces
from hushstream.engine.learner.items import ItemReader, ReadChange
from hushstream.engine.learner.model_parts import ModelReader, OnChain, PartReader, Version
from hushstream.engine.records import InputSlice, ReplayMismatch
from hushstream.feedback.join import JoinOutcome
from hushstream.feedback.memory import FeedbackRow, PastDecision
from hushstream.learners.exploration import WHOLE
from hushstream.schemas.context_columns import ForgetMark, PhaseEndMark
from hushstream.schemas.feedback_columns import FeedbackColumns, gather_feedback
from hushstream.schemas.rows import REWARD, Reject

NEVER_MS = 1 << 63
"""Log time or offset of a record that does not exist; it is above all values in a log."""

FLOAT_TIE_MARGIN = 1e-4
"""On replay a journaled arm may differ from the recomputed one only if the difference of their scores is within this
margin (another CPU's rounding); such ties are counted. A larger difference is a mismatch."""

MODEL, PUBLIC, REPEATED = 0, 1, 2
"""How a row was answered: `Decisions.policies`. PUBLIC: a user over quota gets the baseline that everybody would
get."""

CERTAIN = WHOLE
"""The propensity of an answer that was not drawn at random, in units of 1e-9."""

_ANSWERS = (("arms", "<i4"), ("propensities", "<u4"))


# What a batch consists of.


class Clicks(NamedTuple):
    """A run of rows of feedback that come before the next item, oldest first."""

    rows: Sequence[FeedbackRow]


class Published(NamedTuple):
    """A published model: its log time, the reader of its track, its record, and its slice."""

    log_time_ms: int
    reader: ModelReader
    record: OnChain
    part: InputSlice


class Changed(NamedTuple):
    """A record of the catalogue: its log time, its content, and its slice."""

    log_time_ms: int
    read: ReadChange
    part: InputSlice


class Contexts(NamedTuple):
    """Rows of contexts with no click and no model between them; rows below ``last`` may follow in the batch."""

    decoded: DecodedContexts
    rows: range
    last: int


class PhaseEnd(NamedTuple):
    """The end of a phase, which is logged."""

    log_time_ms: int
    phase: int


class Forget(NamedTuple):
    """The erasure of a user, which is logged."""

    log_time_ms: int
    user: str


Item = Clicks | Published | Changed | Contexts | PhaseEnd | Forget


def settled_at(due_ms: int, settle_ms: int) -> int:
    """The log time from which something due at ``due_ms`` must leave.

    Log time is divided into spans as long as the settle time. All rows that fell due in one span leave together, one
    full span after its end. If each row left by itself, its time would show whose it is.
    """
    return (due_ms // settle_ms + 2) * settle_ms if settle_ms else due_ms


@dataclass(slots=True, eq=False)
class DecisionBatch(Batch):
    """A batch of one partition's inputs: `in_order` yields them, and the learner notes their results here.

    Attributes:
        contexts, clicks, public: the inputs that are merged.
        earlier: position of feedback that waited for its context; its record is no longer available.
        sent: number of slots or rows among the releases.
        float_ties: see `Abilities.float_ties`.
    """

    contexts: InputSlice = field(init=False)
    clicks: FeedbackCursor = field(init=False)
    public: PublicCursor = field(init=False)
    earlier: InputSlice = field(init=False)
    sent: int = 0
    float_ties: int = 0
    _pieces: Pieces = ()
    _arms_there: int = 0
    _replayed_answers: Sequence[list[int]] = ()
    _event_ids: list[str] = field(default_factory=list)
    _arms: list[int] = field(default_factory=list)
    _propensities: list[int] = field(default_factory=list)
    _policies: bytearray = field(default_factory=bytearray)
    _versions: list[int] = field(default_factory=list)

    def merge(self, pieces: Pieces, inputs: tuple[InputSlice, FeedbackCursor, PublicCursor], arms: int) -> None:
        """Say what is merged.

        Args:
            pieces: the decoded contexts of the slice of contexts.
            inputs: contexts, clicks, and public inputs.
            arms: how many arms the deployment has.
        """
        self._pieces, self._arms_there = pieces, arms
        self.contexts, self.clicks, self.public = inputs
        self.earlier = self.clicks.part._replace(records=())
        if self.replayed is not None:
            answers = ((self.replayed.fields[name], kind) for name, kind in _ANSWERS)
            self._replayed_answers = [np.frombuffer(packed, kind).tolist() for packed, kind in answers]

    def refuse_at(self, reason: str, part: InputSlice, offset: int, row: int = WHOLE_RECORD) -> None:
        """Write a dead letter. Of a record of an earlier batch (early feedback) only the position is known."""
        place = bisect_left(part.records, offset, key=attrgetter("offset"))
        found = place < len(part.records) and part.records[place].offset == offset
        value = part.records[place].value if found else b""
        self.dead.append(self.role.letters.letter(reason, part.topic, self.role.partition, offset, row, value))
        self.counts[Outcome.REJECTED] += 1

    # Its inputs, in order.

    def in_order(self, now_ms: int) -> Iterator[Item]:
        """Yield all inputs in their order; invalid ones are refused meanwhile.

        Args:
            now_ms: log time that contexts and phase ends had reached before this batch.
        """
        covered = range(self.contexts.low, self.contexts.high)
        for reject in self.clicks.rejects:
            self.refuse_at(reject.reason, self.clicks.part, reject.offset, reject.row)
        for piece, _ in self._pieces:
            for reject in piece.columns.rejects:
                if reject.offset in covered:
                    self.refuse_at(reject.reason, self.contexts, reject.offset, reject.row)
        for offset in (offset for piece, _ in self._pieces for offset in piece.oversized if offset in covered):
            self.refuse_at(Refusal.TOO_MANY_ROWS, self.contexts, offset)
        for piece, rows in self._pieces:
            done = rows.start
            if losses := piece.losses[rows.start : rows.stop]:
                missing, at_end = map(sum, zip(*losses, strict=True))
                self.counts[Outcome.VALUE_MISSING] += missing
                self.counts[Outcome.VALUE_AT_END] += at_end
            for mark in piece.columns.marks:
                if mark.offset not in covered:
                    continue
                now_ms = yield from self._runs(piece, range(done, mark.position), now_ms)
                done = mark.position
                if isinstance(mark, PhaseEndMark):
                    now_ms = yield from self._phase_end(mark, now_ms)
                else:
                    now_ms = yield from self._forget(mark, now_ms)
            now_ms = yield from self._runs(piece, range(done, rows.stop), now_ms)
        if min(self.clicks.next_ms, self.public.next_ms) < NEVER_MS:
            yield from self._before(NEVER_MS - 1)

    def _runs(self, decoded: DecodedContexts, rows: range, now_ms: int) -> Generator[Item, None, int]:
        """Yield runs of rows, each after the inputs before it; returns the log time of the last one."""
        clicks, public, oversized = self.clicks, self.public, frozenset(decoded.oversized)
        columns = decoded.columns
        offsets, times_ms, after_clicks = columns.offsets, columns.timestamps_ms, columns.after_clicks
        first, last = rows.start, rows.stop
        while first < last:
            if oversized and offsets[first] in oversized:
                first += 1
                continue
            after_click = after_clicks[first]
            if times_ms[first] > now_ms:
                now_ms = times_ms[first]
            if clicks.next_ms <= now_ms or clicks.next_offset <= after_click or public.next_ms <= now_ms:
                yield from self._before(now_ms, after_click)
            next_ms, next_click = clicks.next_ms, clicks.next_offset
            if public.next_ms < next_ms:
                next_ms = public.next_ms
            row = first + 1
            while row < last and times_ms[row] < next_ms and after_clicks[row] < next_click:
                if oversized and offsets[row] in oversized:
                    break
                if times_ms[row] > now_ms:
                    now_ms = times_ms[row]
                row += 1
            yield Contexts(decoded, range(first, row), last)
            first = row
        return now_ms

    def _before(self, log_time_ms: int, after_click: int = -1) -> Iterator[Clicks | Published | Changed]:
        """Yield the inputs before a context or phase end with this log time and this named click."""
        clicks, public = self.clicks, self.public
        while public.next_ms <= log_time_ms:
            if clicks.next_ms <= public.next_ms:
                yield clicks.take(public.next_ms)
            yield public.take()
        # Also without rows: who waits for the last click learns that it was refused.
        if (run := clicks.take(log_time_ms, after_click)) is not NO_CLICKS:
            yield run

    def _phase_end(self, mark: PhaseEndMark, now_ms: int) -> Generator[Item, None, int]:
        ended_ms = max(mark.timestamp_ms, now_ms)
        yield from self._before(ended_ms, mark.after_click)
        reason = self.late_click(mark.after_click)
        if reason is None and mark.phase < 0:
            reason = Refusal.BAD_PHASE
        if reason is not None:
            self.refuse_at(reason, self.contexts, mark.offset)
            return now_ms
        yield PhaseEnd(ended_ms, mark.phase)
        self.counts[Outcome.SEAL] += 1
        return ended_ms

    def _forget(self, mark: ForgetMark, now_ms: int) -> Generator[Item, None, int]:
        if mark.config_digest != self.role.system.digest:
            self.refuse_at(Refusal.OTHER_CONFIGURATION, self.contexts, mark.offset)
            return now_ms
        now_ms = max(mark.timestamp_ms, now_ms)
        yield from self._before(now_ms)
        yield Forget(now_ms, mark.user)
        self.counts[Outcome.FORGOTTEN] += 1
        return now_ms

    # What cannot count.

    def late_click(self, after_click: int) -> Refusal | None:
        """Whether the click that a record names does not exist."""
        return Refusal.AFTER_CLICK_UNREACHABLE if after_click >= self.clicks.read_to else None

    def bad_baseline(self, decoded: DecodedContexts, row: int) -> Refusal | None:
        """Whether the baseline that a context names is not among its eligible arms."""
        mask, baseline = decoded.columns.eligible[row], decoded.columns.baselines[row]
        bad = mask and baseline >= 0 and not eligible_mask(mask, self._arms_there)[baseline]
        return Refusal.BASELINE_NOT_ELIGIBLE if bad else None

    def too_late(self, click: FeedbackRow) -> None:
        """Count feedback whose decision no longer waits. Only a late reward is a loss; a late "shown" is not."""
        self.counts[JoinOutcome.LATE_REWARD if click.kind == REWARD else JoinOutcome.REPEATED_FEEDBACK] += 1

    # Answers.

    def as_journaled(self, decided: PastDecision, gap: Callable[[int, int], float], ahead: int = 0) -> PastDecision:
        """In a replay: the journaled answer of the next row, or of one behind it, if the scores allow it.

        Args:
            decided: the computed answer.
            gap: by how much scores must differ to give the journaled arm and propensity.
            ahead: how many rows come before it whose answers are not noted yet.

        Raises:
            ReplayMismatch: the answers differ by more than a rounding.
        """
        row, where = len(self._arms) + ahead, f"decisions/{self.contexts.partition}"
        arms, propensities = self._replayed_answers
        if row >= len(arms):
            raise ReplayMismatch(f"{where}: the inputs hold more contexts than the record decided")
        arm, propensity = arms[row], propensities[row]
        if (arm, propensity) == (decided.arm, decided.propensity):
            return decided
        if not (0 <= arm < self._arms_there and gap(arm, propensity) <= FLOAT_TIE_MARGIN):
            raise ReplayMismatch(f"{where}: the inputs give another arm at row {row}, beyond a float tie")
        self.float_ties += 1
        return decided._replace(arm=arm, propensity=propensity)

    def unlike_journaled(self, arms: Sequence[int], propensities: Sequence[int]) -> list[int]:
        """In a replay: which of the next answers are not the journaled ones; `as_journaled` judges them."""
        first = len(self._arms)
        journaled_arms, journaled = (answers[first : first + len(arms)] for answers in self._replayed_answers)
        given = zip_longest(zip(arms, propensities, strict=True), zip(journaled_arms, journaled, strict=True))
        return [place for place, (ours, theirs) in enumerate(given) if ours != theirs and ours is not None]

    def answer(self, event_id: str, answer: PastDecision, policy: int) -> None:
        """Note the answer to a context."""
        self._event_ids.append(event_id)
        self._arms.append(answer.arm)
        self._propensities.append(answer.propensity)
        self._policies.append(policy)
        self._versions.append(answer.model_version)

    def answer_all(
        self,
        event_ids: Sequence[str],
        arms: Sequence[int],
        propensities: Sequence[int],
        versions: Sequence[int],
        policies: bytes | bytearray,
    ) -> None:
        """Note the answers to contexts."""
        self._event_ids.extend(event_ids)
        self._arms.extend(arms)
        self._propensities.extend(propensities)
        self._policies.extend(policies)
        self._versions.extend(versions)

    def turn_away(self, decoded: DecodedContexts, row: int, past: PastDecision | None, reason: str | None) -> bool:
        """Refuse a context, or repeat the answer of its event; False if it must be decided.

        Args:
            decoded: the contexts.
            row: index of this one.
            past: the earlier decision for its event; None for a new event.
            reason: why it is refused, if it is.
        """
        columns = decoded.columns
        if reason is None and past is not None and past.user != columns.users[row]:
            reason = Refusal.EVENT_OF_ANOTHER_USER
        if reason is not None:
            self.refuse_at(reason, self.contexts, columns.offsets[row], columns.rows[row])
        elif past is not None:
            self.repeat(columns.event_ids[row], past)
        return reason is not None or past is not None

    def repeat(self, event_id: str, past: PastDecision) -> None:
        """Note the earlier answer of an event again."""
        self.answer(event_id, past, REPEATED)
        self.counts[Outcome.REPEATED_CONTEXT] += 1

    def fields(self, log_time_ms: int, policy: str) -> dict[str, Any]:
        """The fields of the journal record without its head."""
        size, propensities, policies = len(self._arms), self._propensities, bytes(self._policies)
        explored = 0
        if min(propensities, default=WHOLE) < WHOLE // 2:
            answers = zip(propensities, policies, strict=True)
            explored = sum(propensity < WHOLE // 2 and by == MODEL for propensity, by in answers)
        self.counts[Outcome.EXPLORED] += explored
        return {
            "log_time_ms": log_time_ms,
            "event_ids": self._event_ids,
            "arms": struct.pack(f"<{size}i", *self._arms),
            "propensities": struct.pack(f"<{size}I", *propensities),
            "policy": policy,
            "policies": policies,
            "model_versions": struct.pack(f"<{size}i", *self._versions),
            "slots": self.sent,
            "debits": self.debits,
        }


# The inputs that are merged.

NO_CLICKS = Clicks(())


class FeedbackCursor:
    """A cursor over the click records of a batch, oldest first. It takes whole records.

    Attributes:
        part: their slice.
        rejects: invalid parts of them.
        next_ms: log time of the next one, or the largest before it; `NEVER_MS` after the last.
        next_offset: its offset; `NEVER_MS` after the last.
        latest_ms: log time of the last one that was taken.
        read_to: the offset after it.
    """

    __slots__ = ("_offsets", "_row", "_rows", "_taken", "_times_ms", "latest_ms", "next_ms",
                 "next_offset", "part", "read_to", "rejects")  # fmt: skip

    def __init__(self, part: InputSlice, latest_ms: int) -> None:
        """Decode a slice of clicks after clicks up to log time ``latest_ms``."""
        self.part = part
        columns = gather_feedback(part.records) if part.records else None
        self.rejects: Sequence[Reject] = () if columns is None else columns.rejects
        self._rows: Sequence[FeedbackRow] = () if columns is None else _feedback_rows(columns)
        self.latest_ms, self.read_to = latest_ms, part.low
        times_ms = [max(latest_ms, record.timestamp_ms) for record in part.records]
        self._times_ms = [*accumulate(times_ms, max), NEVER_MS]
        self._offsets = [*(record.offset for record in part.records), NEVER_MS]
        self._taken = self._row = 0
        self.next_ms, self.next_offset = self._times_ms[0], self._offsets[0]

    def take(self, log_time_ms: int, after_click: int = -1) -> Clicks:
        """Take and return all feedback before a context with this log time and this named click."""
        taken = bisect_right(self._times_ms, log_time_ms, self._taken)
        if after_click >= 0:
            in_time = bisect_right(self._times_ms, log_time_ms + CLICK_CLOCK_MARGIN_MS, self._taken)
            taken = max(taken, min(in_time, bisect_right(self._offsets, after_click, self._taken)))
        if taken == self._taken:
            return NO_CLICKS
        self.latest_ms, self.read_to = self._times_ms[taken - 1], self._offsets[taken - 1] + 1
        self.next_ms, self.next_offset = self._times_ms[taken], self._offsets[taken]
        rows, first, self._taken = self._rows, self._row, taken
        while self._row < len(rows) and rows[self._row].offset < self.read_to:
            self._row += 1
        return Clicks(rows[first : self._row])


def _feedback_rows(columns: FeedbackColumns) -> list[FeedbackRow]:
    places = columns.offsets, columns.rows, columns.timestamps_ms
    return [*map(FeedbackRow, columns.kinds, columns.event_ids, columns.users, columns.arms, columns.rewards, *places)]


class PublicCursor:
    """A cursor over the changes of the catalogue and the published models of a batch, by log time; changes come first.

    ``next_ms`` is the log time of the next one, or `NEVER_MS`.
    """

    __slots__ = ("_items", "_taken", "next_ms")

    def __init__(
        self,
        models: Sequence[tuple[ModelReader, InputSlice]],
        changes: tuple[ItemReader, InputSlice] | None = None,
        parts: tuple[PartReader, InputSlice] | None = None,
    ) -> None:
        """Read every slice. A model is left out if it is not on its track's chain, or if parts are missing."""
        found: list[Published | Changed] = []
        if changes is not None and changes[1].high > changes[1].low:
            found.extend(Changed(one.log_time_ms, one, changes[1]) for one in changes[0].read(changes[1]))
        if parts is None:
            found.extend(one for reader, part in models if part.high > part.low for one in _published(reader, part))
        else:
            (track,) = models
            found.extend(_joined(*track, *parts))
        self._items = sorted(found, key=attrgetter("log_time_ms"))
        self._taken = 0
        self.next_ms = self._items[0].log_time_ms if found else NEVER_MS

    def take(self) -> Published | Changed:
        """The next record; the cursor advances."""
        item = self._items[self._taken]
        self._taken += 1
        self.next_ms = self._items[self._taken].log_time_ms if self._taken < len(self._items) else NEVER_MS
        return item


def _published(reader: ModelReader, part: InputSlice) -> Iterator[Published]:
    return (Published(version.log_time_ms, reader, version.record, part) for version in _versions(reader, part))


def _joined(reader: ModelReader, part: InputSlice, parts: PartReader, more: InputSlice) -> Iterator[Published]:
    whole = parts.joined(_versions(reader, part), more)
    return (Published(version.log_time_ms, reader, version.record, part) for version in whole)


def _versions(reader: ModelReader, part: InputSlice) -> Iterator[Version]:
    times_ms = {record.offset: record.timestamp_ms for record in part.records}
    latest_ms = 0
    for record in reader.read(part):
        latest_ms = max(latest_ms, times_ms[record.offset])
        yield Version(latest_ms, record)


def eligible_mask(mask: bytes, arms: int) -> NDArray[np.bool_]:
    """Unpack a bitmask (bit a of byte a // 8) into bool (arms,)."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:arms]
    eligible = np.zeros(arms, dtype=np.bool_)
    eligible[: len(bits)] = bits.astype(np.bool_)
    return eligible
