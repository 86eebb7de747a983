"""The decisions of one user that wait for feedback, and the outcome of each.

A decision is learned from once: when its reward comes, or as reward 0 when it was shown and nothing came
within the wait. A decision that was never shown teaches nothing. When another arm was on screen than the one
decided, that arm is learned (its propensity is unknown, so it must not enter an off-policy estimate).

The answer of a rewarded decision is kept until its deadline, like that of a waiting one, so a repeated request before
that gets the same answer from either. So the number of a user's decisions, and the times when slots are due, do not
depend on rewards.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

NOT_SHOWN = -1
"""Value of the arm on screen until feedback says which one was shown."""


class JoinOutcome(StrEnum):
    """The outcome of one piece of feedback, or of missing feedback."""

    SHOWN = "shown"
    REWARDED = "rewarded"
    REPEATED_FEEDBACK = "repeated_feedback"
    LATE_REWARD = "late_reward"
    OTHER_ARM = "other_arm"
    EXPIRED_AS_ZERO = "expired_as_zero"
    NEVER_SHOWN = "never_shown"
    HARM = "harm"
    HARM_NOT_COUNTED = "harm_not_counted"


JOIN_OUTCOMES: Mapping[str, Literal["zone-private"]] = dict.fromkeys(map(str, JoinOutcome), "zone-private")
"""All of them depend on clicks."""


@dataclass(slots=True, eq=False)
class OpenDecision:
    """A decision that waits: the bytes of its context, what was answered, its number in the user's life, its deadline
    and the arm on screen.
    """

    context: bytes
    arm: int
    propensity: int
    model_version: int
    index: int
    deadline_ms: int
    shown_arm: int = NOT_SHOWN


class Answer(Protocol):
    """The answer to an event, and until when a repeated request gets it; see `OpenDecision`."""

    @property
    def arm(self) -> int: ...
    @property
    def propensity(self) -> int: ...
    @property
    def model_version(self) -> int: ...
    @property
    def deadline_ms(self) -> int: ...


class Answered(NamedTuple):
    """The `Answer` of an event that is rewarded."""

    arm: int
    propensity: int
    model_version: int
    deadline_ms: int


class OpenDecisions(dict[str, OpenDecision]):
    """All waiting decisions of one user, by event id, oldest first, and the answers of rewarded ones."""

    __slots__ = ("_answered",)

    def __init__(self) -> None:
        """Start with none."""
        super().__init__()
        self._answered: KeptAnswers | None = None  # Most users have no kept answer most of the time.

    def has_answer(self, event_id: str) -> bool:
        """Whether the answer of this event is kept because it was rewarded."""
        return self._answered is not None and event_id in self._answered

    def known(self, event_id: str, now_ms: int) -> Answer | None:
        """The answer to an event whose deadline is after ``now_ms``, rewarded or not; otherwise None."""
        found: Answer | None = self.get(event_id)
        if found is None and self._answered is not None:
            found = self._answered.get(event_id)
        return None if found is None or found.deadline_ms <= now_ms else found

    def answers(self) -> Iterator[tuple[str, Answered]]:
        """Event ids and answers of rewarded events, in the order of their rewards."""
        return iter(self._answered or ())

    def keep_answer(self, event_id: str, answer: Answer) -> None:
        """Keep the answer of a rewarded event."""
        if self._answered is None:
            self._answered = KeptAnswers()
        self._answered.keep(event_id, answer)

    def forget_answers(self, now_ms: int) -> None:
        """Drop answers whose deadline has passed, up to the first whose has not.

        Later answers were rewarded after that one, so no answer is kept longer than two waits.
        """
        if self._answered is not None and self._answered.next_ms <= now_ms:
            self._answered.forget(now_ms)
            if not len(self._answered):
                self._answered = None

    def shown(self, event_id: str, arm: int) -> JoinOutcome:
        """Note which arm was on screen for a waiting event; only the first note counts."""
        decision = self[event_id]
        if decision.shown_arm != NOT_SHOWN:
            return JoinOutcome.REPEATED_FEEDBACK
        decision.shown_arm = arm
        return JoinOutcome.SHOWN if arm == decision.arm else JoinOutcome.OTHER_ARM

    def rewarded(self, event_id: str, arm: int) -> tuple[OpenDecision, int]:
        """Resolve a waiting event; returns the arm for which its reward is learned.

        A reward implies that its arm was on screen, unless *shown* said otherwise.
        """
        decision = self.close(event_id)
        self.keep_answer(event_id, decision)
        return decision, arm if decision.shown_arm == NOT_SHOWN else decision.shown_arm

    def close(self, event_id: str) -> OpenDecision:
        """Remove and return a waiting decision."""
        decision = self.pop(event_id)
        if not self:
            self.clear()  # The room of decisions that waited goes, too: most users have none most of the time.
        return decision


# The answers of rewarded events, packed.

_FIELDS = struct.Struct("<qIiIH")
"""Head of an entry: deadline, propensity, version of the model, arm, and length of the event id, which follows."""
_LENGTH = struct.Struct("<H")
"""Length of an event id; ids have at most 128 bytes (`hushstream.schemas.rows.MAX_ID_BYTES`)."""
_ID = _FIELDS.size
_ID_LENGTH = _ID - _LENGTH.size
_LEAST_PLACES = 8
_BLOCK_BITS = 12
_BLOCK = 1 << _BLOCK_BITS
"""An entry begins in a block below this size, and may end above it."""
_WITHIN = _BLOCK - 1
_WINDOW_BITS, _MEMORY_LEVEL = -12, 5
"""Of zlib, for blocks of this size: with its defaults it would take and clear a quarter of a megabyte for each."""
_TAG_SHIFT = 32
"""The lowest bits of a hash select its slot in the table."""


class KeptAnswers:
    """Answers by event id, in the order in which they were first kept; the oldest are dropped first.

    They are packed: 21 bytes each where a user has 1,250, and objects would take 250. A user may have thousands
    of answers within one attribution window, and nearly all of them are only dropped at its end. So answers lie one
    behind the other in blocks of bytes, in the order of their rewards. All blocks between the first and the last are
    compressed: most answers share a version, and their deadlines and ids begin alike. A hash table holds the places of
    answers.

    Blocks are small, and are allocated and freed as a whole. A single buffer that grows would be moved at each growth,
    and with many users each move would leave a gap in memory that no other buffer fits into: memory use doubled.

    Attributes:
        next_ms: the deadline of the oldest one; without meaning if there is none.
    """

    __slots__ = ("_blocks", "_count", "_first", "_last", "_last_block", "_places", "_slots_left", "_tags", "next_ms")

    def __init__(self) -> None:
        """Begin without answers."""
        self._begin()
        self.next_ms = 0

    def __len__(self) -> int:
        """Number of answers."""
        return self._count

    def __contains__(self, event_id: str) -> bool:
        """Whether this event's answer is kept."""
        return self._places[self._search(event_id)] > 0

    def __iter__(self) -> Iterator[tuple[str, Answered]]:
        """Event ids and answers, oldest first."""
        start = self._first & _WITHIN
        for block in map(_read, self._blocks):
            while start < len(block):
                end = _end(block, start)
                yield _event_id(block, start, end), _answer(block, start)
                start = end
            start = 0

    def get(self, event_id: str) -> Answered | None:
        """The answer of an event, or None."""
        places = self._places
        if not places[hash(event_id) & len(places) - 1]:
            return None  # The usual case: most events are new.
        place = places[self._search(event_id)]
        return _answer(*self._at(place)) if place else None

    def keep(self, event_id: str, answer: Answer) -> None:
        """Keep an answer. It replaces an earlier one of this event and keeps its age."""
        places, deadline_ms = self._places, answer.deadline_ms
        hashed = hash(event_id)
        slot = hashed & len(places) - 1
        if places[slot]:
            slot = self._search(event_id)
        text = event_id.encode("utf-8", "surrogatepass")
        fields = _FIELDS.pack(deadline_ms, answer.propensity, answer.model_version, answer.arm, len(text))
        place = places[slot]
        if place:
            block, start = self._at(place)
            block[start : start + _ID] = fields
            # A compressed block was read as a copy: it stays open from now on.
            self._blocks[self._number(place)] = block
            if place == self._first:
                self.next_ms = deadline_ms
            return
        block = self._last_block
        start = len(block)
        if start >= _BLOCK:
            block, start = self._another_block(), 0
        block += fields + text
        places[slot] = self._last + start
        self._tags[slot] = hashed >> _TAG_SHIFT & 0xFF
        if not self._count:
            self.next_ms = deadline_ms
        self._count += 1
        self._slots_left -= 1
        if not self._slots_left:
            self._tidy()

    def forget(self, now_ms: int) -> None:
        """Drop the oldest answers whose deadline has passed, up to the first one whose deadline has not."""
        while self._count and self.next_ms <= now_ms:
            self._count -= 1
            if not self._count:
                self._begin()
                return
            block, start = self._at(self._first)
            end = _end(block, start)
            if end < len(block):
                self._first += end - start
            else:
                del self._blocks[0]
                self._blocks[0] = _read(self._blocks[0])
                self._first += _BLOCK - start
            self.next_ms = _FIELDS.unpack_from(*self._at(self._first))[0]

    def _begin(self) -> None:
        """Begin without answers, and with the smallest table."""
        self._last_block = bytearray()
        """New entries go here."""
        self._blocks: list[bytes | bytearray] = [self._last_block]
        """Open blocks and compressed ones (bytes)."""
        self._count = 0
        # A place is the number of a block (from 1 on), followed by the position in it at which an entry begins.
        self._first = self._last = _BLOCK
        """Place of the oldest entry, and place of the beginning of the last block."""
        self._make_table(_LEAST_PLACES)

    def _make_table(self, size: int) -> None:
        # Open addressing: the table has places of entries (0 if there is none) and bits of their ids' hashes, so that a
        # search hardly ever reads another entry. Dropped entries stay in the table until it is rebuilt, because an
        # emptied slot would end the search for entries behind it.
        self._places = array("I", bytes(4 * size))
        self._tags = bytearray(size)
        self._slots_left = 2 * size // 3

    def _number(self, place: int) -> int:
        """The position of an entry's block in `_blocks`."""
        return (place >> _BLOCK_BITS) - (self._first >> _BLOCK_BITS)

    def _at(self, place: int) -> tuple[bytearray, int]:
        """The block of an entry, and the entry's beginning in it."""
        return _read(self._blocks[self._number(place)]), place & _WITHIN

    def _another_block(self) -> bytearray:
        """Add an empty block, and compress the one before it, unless answers are dropped from that one."""
        if len(self._blocks) > 1:
            self._blocks[-1] = _compressed(self._last_block)
        self._last_block = block = bytearray()
        self._blocks.append(block)
        self._last += _BLOCK
        return block

    def _search(self, event_id: str) -> int:
        """The slot of the table that has the entry of this event, or is free for it."""
        places, tags, hashed = self._places, self._tags, hash(event_id)
        last, tag = len(places) - 1, hashed >> _TAG_SHIFT & 0xFF
        slot = hashed & last
        while place := places[slot]:
            if tags[slot] == tag and place >= self._first:
                block, start = self._at(place)
                if block.startswith(_key(event_id), start + _ID_LENGTH):
                    break
            slot = slot + 1 & last
        return slot

    def _tidy(self) -> None:
        """Rebuild the table from the kept answers, and number blocks from the first remaining one."""
        self._first = _BLOCK + (self._first & _WITHIN)
        self._last = len(self._blocks) << _BLOCK_BITS
        size = _LEAST_PLACES
        while size < 5 * self._count:
            size *= 2
        self._make_table(size)
        self._slots_left -= self._count
        places, tags, last, base, start = self._places, self._tags, size - 1, _BLOCK, self._first & _WITHIN
        for block in map(_read, self._blocks):
            while start < len(block):
                end = _end(block, start)
                hashed = hash(_event_id(block, start, end))
                slot = hashed & last
                while places[slot]:
                    slot = slot + 1 & last
                places[slot] = base + start
                tags[slot] = hashed >> _TAG_SHIFT & 0xFF
                start = end
            base, start = base + _BLOCK, 0


def _compressed(block: bytearray) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
    return packer.compress(block) + packer.flush()


def _read(block: bytes | bytearray) -> bytearray:
    """A block as it was before it was compressed."""
    return block if isinstance(block, bytearray) else bytearray(zlib.decompress(block, _WINDOW_BITS))


def _end(block: bytearray, start: int) -> int:
    """Where an entry ends."""
    length: int = _LENGTH.unpack_from(block, start + _ID_LENGTH)[0]
    return start + _ID + length


def _event_id(block: bytearray, start: int, end: int) -> str:
    return block[start + _ID : end].decode("utf-8", "surrogatepass")


def _answer(block: bytearray, start: int) -> Answered:
    deadline_ms, propensity, model_version, arm, _ = _FIELDS.unpack_from(block, start)
    return Answered(arm, propensity, model_version, deadline_ms)


def _key(event_id: str) -> bytes:
    """An event id behind its length, so that none is the beginning of another."""
    text = event_id.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(text)) + text
