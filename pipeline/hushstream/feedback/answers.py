"""The answers of one user's rewarded events, packed: about 50 bytes each, where objects take some 250.

A user may have thousands of them within one attribution window, and nothing is done with nearly all of them but to
forget them at its end. So they lie one behind the other in one block of bytes, in the order of their rewards, with a
hash table of their places beside it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple, Protocol

_FIELDS = struct.Struct("<qIiII")
"""Of an entry: deadline, propensity, version of the model, arm, and bytes of the event id, which follows."""
_LENGTH = struct.Struct("<I")
_ID = _FIELDS.size
_ID_LENGTH = _ID - _LENGTH.size
_LEAST_PLACES = 8


class Answer(Protocol):
    """What was answered to an event, and until when it gets the same again; see `OpenDecision`."""

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


class KeptAnswers:
    """Answers by event id, in the order in which they were first kept; the oldest leave first.

    Attributes:
        next_ms: the deadline of the oldest one; meaningless where there is none.
    """

    __slots__ = ("_count", "_entries", "_filled", "_first", "_places", "next_ms")

    def __init__(self) -> None:
        """Keep none."""
        self._entries = bytearray()
        self._first = 0
        """Where the oldest entry begins; what lies before it is forgotten."""
        self._count = 0
        # Open addressing: one more than where an entry begins, 0 where there is none. What is forgotten stays until the
        # table is made anew: emptied, its place would end the search for what lies behind it.
        self._places = array("I", bytes(4 * _LEAST_PLACES))
        self._filled = 0
        self.next_ms = 0

    def __len__(self) -> int:
        """How many are kept."""
        return self._count

    def __contains__(self, event_id: str) -> bool:
        """Whether this event's answer is kept."""
        return self._places[self._search(event_id)] > 0

    def __iter__(self) -> Iterator[tuple[str, Answered]]:
        """Event ids and answers, oldest first."""
        entries, start = self._entries, self._first
        while start < len(entries):
            end = self._end(start)
            yield self._event_id(start, end), self._answer(start)
            start = end

    def get(self, event_id: str) -> Answered | None:
        """The answer of an event, or None."""
        places = self._places
        if not places[hash(event_id) & len(places) - 1]:
            return None  # as nearly all who are asked for, being new
        place = places[self._search(event_id)]
        return self._answer(place - 1) if place else None

    def keep(self, event_id: str, answer: Answer) -> None:
        """Keep an answer; in place of another one of this event, if there is one, and as old as that."""
        places, deadline_ms = self._places, answer.deadline_ms
        slot = hash(event_id) & len(places) - 1
        if places[slot]:
            slot = self._search(event_id)
        text = event_id.encode("utf-8", "surrogatepass")
        fields = _FIELDS.pack(deadline_ms, answer.propensity, answer.model_version, answer.arm, len(text))
        start = places[slot] - 1
        if start >= 0:
            self._entries[start : start + _ID] = fields
        else:
            start = len(self._entries)
            places[slot] = start + 1
            self._entries += fields + text
            self._count += 1
            self._filled += 1
            if 2 * self._filled > len(places):
                self._tidy()
        if start <= self._first:
            self.next_ms = deadline_ms

    def forget(self, now_ms: int) -> None:
        """Drop the oldest ones whose deadline has passed, up to the first whose has not."""
        while self._count and self.next_ms <= now_ms:
            self._first = self._end(self._first)
            self._count -= 1
            if self._count:
                self.next_ms = _FIELDS.unpack_from(self._entries, self._first)[0]
        if 2 * self._first > len(self._entries):
            self._tidy()

    def _search(self, event_id: str) -> int:
        """The slot of the table that has the entry of this event, or is free for it."""
        places = self._places
        last = len(places) - 1
        slot = hash(event_id) & last
        entries, first, key = self._entries, self._first, _key(event_id)
        while place := places[slot]:
            if place > first and entries.startswith(key, place - 1 + _ID_LENGTH):
                break
            slot = (slot + 1) & last
        return slot

    def _tidy(self) -> None:
        """Make block and table anew, from what is still kept: at most half of the table's places are taken then."""
        del self._entries[: self._first]
        self._first = 0
        size = _LEAST_PLACES
        while size < 4 * self._count:
            size *= 2
        self._places = array("I", bytes(4 * size))
        self._filled = self._count
        entries, places, last, start, size = self._entries, self._places, size - 1, 0, len(self._entries)
        while start < size:
            text = start + _ID
            end: int = text + _LENGTH.unpack_from(entries, text - _LENGTH.size)[0]
            slot = hash(entries[text:end].decode("utf-8", "surrogatepass")) & last
            while places[slot]:
                slot = slot + 1 & last
            places[slot] = start + 1
            start = end

    def _end(self, start: int) -> int:
        length: int = _LENGTH.unpack_from(self._entries, start + _ID_LENGTH)[0]
        return start + _ID + length

    def _event_id(self, start: int, end: int) -> str:
        return self._entries[start + _ID : end].decode("utf-8", "surrogatepass")

    def _answer(self, start: int) -> Answered:
        deadline_ms, propensity, model_version, arm, _ = _FIELDS.unpack_from(self._entries, start)
        return Answered(arm, propensity, model_version, deadline_ms)


def _key(event_id: str) -> bytes:
    """An event id behind its length, so that none is the beginning of another."""
    text = event_id.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(text)) + text
