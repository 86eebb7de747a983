"""The decisions that wait for feedback, and the outcome of each.

A decision is learned from once: when its reward comes, or as reward 0 when it was shown and nothing came
within the wait. A decision that was never shown teaches nothing. When another arm was on screen than the one
decided, that arm is learned (its propensity is unknown, so it must not enter an off-policy estimate).

The answer of a rewarded decision is kept until its deadline, like that of a waiting one, so a repeated request before
that gets the same answer from either. So the number of a user's decisions, and the times when slots are due, do not
depend on rewards.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import numpy as np

from hushstream.feedback.memory import NOBODY, PastDecision

NOT_SHOWN = -1
"""Value of the arm on screen until feedback says which one was shown."""

NO_DECISION = -1
"""In place of the number of a decision that does not exist."""


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


class OpenDecision(NamedTuple):
    """A decision that waits.

    Attributes:
        arm, propensity, model_version: what was answered.
        number: its number among the decisions of its user.
        deadline_ms: log time at which its wait ends.
        shown_arm: the arm on screen, or `NOT_SHOWN`.
        before: the number of its user's decision before it, or `NO_DECISION`.
        context: the bytes of its context.
        held: its number in `Decisions`.
    """

    arm: int
    propensity: int
    model_version: int
    number: int
    deadline_ms: int
    shown_arm: int
    before: int
    context: bytes
    held: int


class Resolving(NamedTuple):
    """What is needed of decisions whose rewards have come: columns of an `OpenDecision`, and how many were shown.

    Attributes:
        numbers, deadlines_ms, contexts: see `OpenDecision`.
        on_screen: the arms on screen, those of the rewards where nothing else was told.
        agreed: in how many of them that was the arm of the decision.
    """

    numbers: list[int]
    deadlines_ms: list[int]
    contexts: list[bytes]
    on_screen: list[int]
    agreed: int


_TYPES = "iIiqqiq"
"""Types of the numbers of an `OpenDecision`, one letter each."""
_HEAD = struct.Struct("<qqq")
"""Number of the first decision, of the first whose deadline has not passed, and bytes of a context."""

_WAITS, _ANSWERED, _ENDED, _DROPPED = range(4)
"""What became of a decision: it waits, it was rewarded, its wait ended, or its user was deleted."""
_HIDDEN = 4
"""Added to these where nobody is told the answer again."""

_NEVER_MS = 1 << 62

_TIDY_EVERY = 1024
"""What is needed no more is looked for after so many decisions."""


class Decisions:
    """The decisions of all users of a partition, in the order in which they were made, as columns.

    Log time never goes back and all waits are equally long, so this is also the order of deadlines. A decision is held
    until its deadline, rewarded or not, and the newest ones are remembered also after it. It is named by its number
    among all that were ever made. Those of one user are a chain, from the newest to the oldest.

    Attributes:
        end: the number of the next decision.
        numbers: those of the decisions that are held, by event.
    """

    __slots__ = (
        "_arms",
        "_befores",
        "_columns",
        "_contexts",
        "_deadlines",
        "_events",
        "_first",
        "_own_numbers",
        "_passed",
        "_propensities",
        "_remembered",
        "_shown",
        "_states",
        "_tidy_at",
        "_users",
        "_versions",
        "_width",
        "end",
        "numbers",
    )

    def __init__(self, remembered: int = 0) -> None:
        """Begin without decisions; ``remembered`` ones are known also after their deadlines."""
        self._remembered = remembered
        self._set(0, 0, 0, [], [], bytearray(), bytearray(), [array(kind) for kind in _TYPES])

    def _set(
        self,
        first: int,
        passed: int,
        width: int,
        events: list[str],
        users: list[str],
        states: bytearray,
        contexts: bytearray,
        columns: list[array[int]],
    ) -> None:
        self._first, self._passed, self._width, self.end = first, passed, width, first + len(events)
        self._events, self._users, self._states, self._contexts, self._columns = (
            events,
            users,
            states,
            contexts,
            columns,
        )
        (self._arms, self._propensities, self._versions, self._own_numbers, self._deadlines, self._shown,
         self._befores) = columns  # fmt: skip
        self._tidy_at = len(events) + _TIDY_EVERY
        self.numbers = {event_id: first + place for place, event_id in enumerate(events)}

    def __len__(self) -> int:
        """How many decisions are held."""
        return self.end - self._first

    def extend(
        self,
        events: Sequence[str],
        users: Sequence[str],
        contexts: bytes,
        arms: Sequence[int],
        propensities: Sequence[int],
        versions: Sequence[int],
        numbers: Sequence[int],
        deadlines_ms: Sequence[int],
        befores: Sequence[int],
    ) -> None:
        """Hold some decisions that wait, at least one, as columns; see `OpenDecision`. Contexts are joined."""
        size, added = len(events), self.end
        if len(self) >= self._tidy_at:
            self._tidy()
        self.numbers.update(zip(events, range(added, added + size), strict=True))
        self._events.extend(events)
        self._users.extend(users)
        self._states.extend(bytes(size))
        self._contexts += contexts
        self._width = len(contexts) // size
        self._arms.extend(arms)
        self._propensities.extend(propensities)
        self._versions.extend(versions)
        self._own_numbers.extend(numbers)
        self._deadlines.extend(deadlines_ms)
        self._shown.extend([NOT_SHOWN] * size)
        self._befores.extend(befores)
        self.end = added + size

    def _tidy(self) -> None:
        """Remove what is needed no more, if it is a quarter of all."""
        dead = self._needed() - self._first
        if 4 * dead >= len(self):
            self._remove(dead)
        self._tidy_at = len(self) + max(_TIDY_EVERY, len(self) // 8)

    def forget(self, now_ms: int) -> None:
        """Take the oldest decisions whose deadline is at or before ``now_ms``, up to the first that waits or lasts."""
        while self._passed < self.end and self._deadlines[self._passed - self._first] <= now_ms:
            if self._states[self._passed - self._first] & ~_HIDDEN == _WAITS:
                return
            self._passed += 1

    def _needed(self) -> int:
        """The number of the oldest decision that is needed."""
        return min(self._passed, max(self._first, self.end - self._remembered))

    def _remove(self, dead: int) -> None:
        """Remove the oldest ones."""
        numbers = self.numbers
        for number, event_id in enumerate(self._events[:dead], self._first):
            if numbers[event_id] == number:
                del numbers[event_id]
        del self._events[:dead], self._users[:dead], self._states[:dead], self._contexts[: dead * self._width]
        for column in self._columns:
            del column[:dead]
        self._first += dead

    # What is known of an event.

    def get(self, event_id: str, ahead: int = 0) -> PastDecision | None:
        """The answer to an event before its deadline, or among the newest; None for another event."""
        number = self.numbers.get(event_id)
        if number is None:
            return None
        place = number - self._first
        state = self._states[place]
        if number < self.end + ahead - self._remembered and (number < self._passed or state & ~_HIDDEN > _ANSWERED):
            return None
        return self._past(place, NOBODY if state & _HIDDEN else self._users[place])

    def _past(self, place: int, user: str) -> PastDecision:
        ended = self._states[place] & ~_HIDDEN == _ENDED
        return PastDecision(user, self._arms[place], self._propensities[place], self._versions[place], ended)

    def waiting(self, event_id: str, user: str) -> OpenDecision | None:
        """A user's decision that waits for feedback on an event; None if there is none."""
        number = self.numbers.get(event_id)
        if number is None:
            return None
        place = number - self._first
        waits = self._states[place] & ~_HIDDEN == _WAITS and self._users[place] == user
        return self[number] if waits else None

    def waiting_in_time(self, events: Sequence[str], users: Sequence[str], times_ms: Sequence[int]) -> list[int]:
        """The numbers of users' decisions that wait for feedback of these log times; `NO_DECISION` for all others."""
        first, states, deadlines_ms, of = self._first, self._states, self._deadlines, self._users
        numbers = [self.numbers.get(event_id, NO_DECISION) for event_id in events]
        return [
            number
            if number != NO_DECISION
            and states[place := number - first] & ~_HIDDEN == _WAITS
            and deadlines_ms[place] >= now_ms
            and of[place] == user
            else NO_DECISION
            for number, user, now_ms in zip(numbers, users, times_ms, strict=True)
        ]

    def known(self, event_id: str, user: str, now_ms: int) -> PastDecision | None:
        """The answer to a user's event whose deadline is after ``now_ms``, rewarded or not; otherwise None."""
        number = self.numbers.get(event_id)
        if number is None:
            return None
        place = number - self._first
        if self._states[place] & ~_HIDDEN > _ANSWERED or self._deadlines[place] <= now_ms or self._users[place] != user:
            return None
        return self._past(place, user)

    def hide(self, which: Callable[[PastDecision], bool]) -> None:
        """Tell nobody the answers of some decisions any longer; users of those that do not wait are removed."""
        for place, user in enumerate(self._users):
            if which(self._past(place, user)):
                self._states[place] |= _HIDDEN
                if self._states[place] & ~_HIDDEN != _WAITS:
                    self._users[place] = NOBODY

    # One decision, by its number.

    def __getitem__(self, number: int) -> OpenDecision:
        """A decision as it is now."""
        place, width = number - self._first, self._width
        return OpenDecision(
            self._arms[place],
            self._propensities[place],
            self._versions[place],
            self._own_numbers[place],
            self._deadlines[place],
            self._shown[place],
            self._befores[place],
            bytes(self._contexts[place * width : (place + 1) * width]),
            number,
        )

    def event(self, number: int) -> str:
        """The event of a decision."""
        return self._events[number - self._first]

    def show(self, number: int, arm: int) -> JoinOutcome:
        """Note which arm was on screen for a waiting decision; only the first note counts."""
        place = number - self._first
        if self._shown[place] != NOT_SHOWN:
            return JoinOutcome.REPEATED_FEEDBACK
        self._shown[place] = arm
        return JoinOutcome.SHOWN if arm == self._arms[place] else JoinOutcome.OTHER_ARM

    def reward_all(self, numbers: Sequence[int], arms: Sequence[int]) -> Resolving:
        """Note that some waiting decisions wait no more, each once, as rewards have come that name these arms."""
        places, width = np.array(numbers) - self._first, self._width
        np.frombuffer(self._states, np.uint8)[places] ^= _WAITS ^ _ANSWERED
        every, shown = np.frombuffer(self._contexts, np.uint8).reshape(-1, width), np.frombuffer(self._shown, np.intc)
        content, seen, own = every[places].tobytes(), shown[places], np.frombuffer(self._own_numbers, np.int64)[places]
        every[places], shown[places] = 0, NOT_SHOWN
        on_screen = np.where(seen == NOT_SHOWN, arms, seen)
        agreed = int((on_screen == np.frombuffer(self._arms, np.intc)[places]).sum())
        deadlines_ms = np.frombuffer(self._deadlines, np.int64)[places]
        contexts = [content[low : low + width] for low in range(0, len(content), width)]
        return Resolving(own.tolist(), deadlines_ms.tolist(), contexts, on_screen.tolist(), agreed)

    def close(self, number: int) -> None:
        """Note that the wait of a decision has ended."""
        self._states[number - self._first] ^= _WAITS ^ _ENDED
        self._wipe(number)

    def _wipe(self, number: int) -> None:
        """Forget the context of a decision that waits no more, and what was shown."""
        place, width = number - self._first, self._width
        self._contexts[place * width : (place + 1) * width] = bytes(width)
        self._shown[place] = NOT_SHOWN

    # Those whose wait is over, and those of a user.

    def ended(self, now_ms: int, dark: bool) -> tuple[int, list[tuple[str, str, OpenDecision]]]:
        """End the waits whose deadline is at or before ``now_ms``.

        Returns how many decisions that were never shown ended, and of all others the event, the user and what waited.
        With ``dark`` it gives those that were never shown, too.
        """
        never, found = self.end_unseen(now_ms, dark), list[tuple[str, str, OpenDecision]]()
        while self.next_ms <= now_ms:
            number, place = self._passed, self._passed - self._first
            never += self._shown[place] == NOT_SHOWN
            found.append((self._events[place], self._users[place], self[number]))
            self.close(number)
            self._passed += 1
            never += self.end_unseen(now_ms, dark)
        return never, found

    @property
    def next_ms(self) -> int:
        """The deadline of the oldest decision whose deadline has not passed."""
        return self._deadlines[self._passed - self._first] if self._passed < self.end else _NEVER_MS

    def end_unseen(self, until_ms: int, dark: bool = False) -> int:
        """End waits as `ended` does, up to the first one that `ended` gives; returns how many."""
        low = self._passed - self._first
        high = bisect_right(self._deadlines, until_ms, low)
        if high == low:
            return 0
        states = np.frombuffer(self._states, np.uint8)[low:high]
        waits = states & (_HIDDEN - 1) == _WAITS
        given = waits if dark else waits & (np.frombuffer(self._shown, np.intc)[low:high] != NOT_SHOWN)
        if given.any():
            high = low + int(given.argmax())
            states, waits = states[: high - low], waits[: high - low]
        states[waits] ^= _WAITS ^ _ENDED
        np.frombuffer(self._contexts, np.uint8).reshape(-1, self._width)[low:high][waits] = 0
        self._passed = self._first + high
        return int(waits.sum())

    def of(self, last: int) -> Iterator[int]:
        """The numbers of a user's decisions that wait, from the newest (``last``) on."""
        while last >= max(self._first, self._passed):
            place = last - self._first
            if self._states[place] & ~_HIDDEN == _WAITS:
                yield last
            last = self._befores[place]

    def drop(self, last: int) -> None:
        """Forget what a user's decisions wait for, their chain, and answers that are not among the newest."""
        while last >= self._first:
            place = last - self._first
            if last >= self._passed:
                self._states[place] |= _DROPPED
                self._wipe(last)
            last, self._befores[place], self._own_numbers[place] = self._befores[place], NO_DECISION, 0

    # On disk.

    def dump(self) -> dict[str, Any]:
        """All that is needed, as plain values."""
        needed = self._needed()
        dead, width = needed - self._first, self._width
        columns = b"".join([column[dead:].tobytes() for column in self._columns])
        head = _HEAD.pack(needed, self._passed, width)
        packed = head + self._states[dead:] + self._contexts[dead * width :] + columns
        return {"decided": self._events[dead:], "decided_for": self._users[dead:], "decisions": packed}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what `dump` gave."""
        events, users, packed = values["decided"], values["decided_for"], values["decisions"]
        first, passed, width = _HEAD.unpack_from(packed)
        place, columns = _HEAD.size, [array(kind) for kind in _TYPES]
        size = len(events)
        states = bytearray(packed[place : place + size])
        place += size
        contexts = bytearray(packed[place : place + size * width])
        place += size * width
        for column in columns:
            column.frombytes(packed[place : place + size * column.itemsize])
            place += size * column.itemsize
        self._set(first, passed, width, list(events), list(users), states, contexts, columns)
