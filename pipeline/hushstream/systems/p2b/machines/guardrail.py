"""Counts a harm beside the lift, so that a model which earns more and does harm is found out.

A harm (a complaint, a return, an unsubscription) is a number from 0 to 1 that the application tells of a decision, at
most once, within a wait of its own: complaints come later than rewards. It is counted of the very decisions whose
reward the lift counts, in the same cells, as 0 where none was told in time. A decision counts when this wait is over,
harmed or not: if harms counted when they come, early rates would be too high. The wait is no shorter than that for the
reward, so when it ends the lift knows whether the decision counts.

*Sensitivity.* At most the first m decisions of a user are held, each counts once, and adds M to one cell: see
`hushstream.systems.p2b.lift`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from hushstream.feedback.join import JoinOutcome
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.systems.p2b.lift import CountedLift, LiftCounter, LiftStep, guardrail_tree

_LENGTH_BYTES = 8
_UNKNOWN = -1
"""The cell of a decision whose outcome the lift does not know yet, and the harm of one of which none was told."""


class _Held(NamedTuple):
    """A decision whose harm may be told: until when, its cell, and its harm."""

    deadline_ms: int
    cell: int = _UNKNOWN
    harm: float = _UNKNOWN

    def is_over(self, now_ms: int) -> bool:
        """Whether its wait is over, and the lift counts it."""
        return self.cell != _UNKNOWN and self.deadline_ms <= now_ms


class Guardrail(LiftCounter):
    """The running counts of the harm of one learner partition: exact inside, noised outside."""

    plan = staticmethod(guardrail_tree)

    def __init__(self, counted: CountedLift, wait_ms: int, key: Key, address: NoiseAddress) -> None:
        """Start without counts; see `LiftCounter`."""
        super().__init__(counted, wait_ms, key, address)
        self._wait_ms = wait_ms
        self._held: dict[bytes, dict[str, _Held]] = {}
        """By user and event."""

    def hold(self, user: bytes, event_id: str, now_ms: int) -> None:
        """Take a decision of now that the lift takes, too."""
        self._held.setdefault(user, {})[event_id] = _Held(now_ms + self._wait_ms)

    def shown(self, user: bytes, event_id: str, cell: int) -> None:
        """Take the cell in which the lift counts a decision."""
        held = self._held[user]
        held[event_id] = held[event_id]._replace(cell=cell)

    def let_go(self, user: bytes, event_id: str) -> None:
        """Drop a decision that the lift does not count."""
        held = self._held.get(user)
        if held is not None and held.pop(event_id, None) is not None and not held:
            del self._held[user]

    def told(self, user: bytes, event_id: str, harm: float, time_ms: int) -> JoinOutcome:
        """Take the harm of a decision, told at this log time; the first one in time counts."""
        held = self._held.get(user, {})
        found = held.get(event_id)
        if found is None or time_ms > found.deadline_ms:
            return JoinOutcome.HARM_NOT_COUNTED
        if found.harm != _UNKNOWN:
            return JoinOutcome.REPEATED_FEEDBACK
        held[event_id] = found._replace(harm=harm)
        return JoinOutcome.HARM

    def forget(self, user: bytes) -> None:
        """See `LiftCounter.forget`."""
        super().forget(user)
        self._held.pop(user, None)

    def release(self, now_ms: int) -> LiftStep:
        """See `LiftCounter.release`."""
        for user in list(self._held):
            over = {event_id: one for event_id, one in self._held[user].items() if one.is_over(now_ms)}
            for event_id, one in over.items():
                self._add(0, user, one.cell, max(0.0, one.harm))
                self.let_go(user, event_id)
        return super().release(now_ms)

    def dump(self) -> bytes:
        """See `LiftCounter.dump`."""
        held = sorted((user.hex(), *item) for user, events in self._held.items() for item in events.items())
        packed = json.dumps(held).encode()
        return len(packed).to_bytes(_LENGTH_BYTES, "little") + packed + super().dump()

    def load(self, state: bytes) -> None:
        """See `LiftCounter.load`."""
        end = _LENGTH_BYTES + int.from_bytes(state[:_LENGTH_BYTES], "little")
        super().load(state[end:])
        self._held = {}
        for user, event_id, held in json.loads(state[_LENGTH_BYTES:end]):
            self._held.setdefault(bytes.fromhex(user), {})[event_id] = _Held(*held)
