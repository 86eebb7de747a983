"""`EdgeAgent`: everything that sees one user's contexts and clicks in clear (the edge zone).

It decides with its own copy of the shared model, learns from its own feedback, and owes one slot after a
stated number of decisions. The content of a slot is private, but its existence and its time are public (PRIVACY rule
2). So a slot falls due by the number of decisions and by log time, whatever contexts and clicks say, and a slot whose
interaction has no reward yet holds null. `EdgeTerms.choice` (`DrawnBefore`, or `TwoCandidates` of declared features)
chooses the interaction of a slot with coins from the user's key.

A slot's report id is a pseudorandom function of the user's key and the slot's number in their life, and nothing else.
The shuffler counts an id once for as long as the deployment lasts (`hushstream.systems.p2b.shuffler`). So even
if agents continue from several copies of a state, one content is counted for each number: a user is in at most
``lifetime_slots`` reports, and restoring an older copy gives them no further slots. If the id depended on the content
or the period too, a second content of the same number would count as another report and cost its epsilon again.

The learner role runs many of these agents on a stream, with the same code and the same bytes as on a device.

*Terms.* The terms that an `EdgeAgent` works by, and the values that go in and out of it.

*Candidates.* Chooses which of a user's interactions goes into their slot: it keeps two candidates, and a coin picks one
of them.

If clicks are rare, most slots would only say that nothing was clicked. So with the public probability h
(`click_chance`) the slot holds the first clicked one of T interactions, else one drawn uniformly from the unclicked
ones. The choice depends on this user's interactions and coins alone, and stays inside the fixed-size report.

A click is a reward above 0.

*Rules.* Caps and pins: what an item's rules leave of the items that a request allows, before any of them is scored.

*Caps.* An item at its cap (`hushstream.engine.catalogue.Cap`) for this user is not chosen. A show is of the item that
was on screen, and counts from the log time of its decision. A decision that still waits to be shown counts too:
otherwise many requests at once would pass the cap. Of an item only as many shows are kept as its cap needs, from the
moment on at which it has a cap; they are deleted with the user's state. A visit over the user's quota keeps to caps,
but its show is not remembered, like the rest of it. Where every allowed item is at its cap, caps give way.

*Pins.* Where allowed items are pinned and below their caps, one of these is chosen; the learner chooses among several.

*Propensities* are over what is left: a single pinned item has propensity 1, an item at its cap 0. A reward teaches what
the item brings in this context. That is a mean given item and context, so it does not matter why the item was chosen.

*The application's own choice* of a measurement's baseline group stands as it was named: if caps decided whether a
decision is counted, the groups would count decisions of different kinds (`hushstream.systems.p2b.lift`).

*Privacy.* Shows are this user's feedback. They are in the user's state alone, in the edge zone, and move what every own
reward moves already: which item this user is shown, thus the content of their slots. Slots are protected whatever they
hold (`hushstream.systems.p2b.slots`), and the lift's sensitivity holds for any cell, answer and reward. What is public
without noise is that a slot exists, and when. It follows from how many decisions a user had. If a request were refused
because every item is at its cap, that number would depend on feedback, and the time of a slot would tell what was
shown. So a request whose items are all at their caps is answered as if there were none.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import Catalogue
from hushstream.feedback.join import NO_DECISION, NOT_SHOWN, Decisions, JoinOutcome, OpenDecision
from hushstream.learners.exploration import WHOLE, Drawn, Exploration, NoEligibleArm, best_of, draw, highest_gap
from hushstream.privacy.keys import Key
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.policies import LearnerState, Lesson, SharedPolicy
from hushstream.systems.p2b.slots import ContributionError, reward_level

CERTAIN = WHOLE
"""Propensities are integers in units of 1e-9; this one means that no other arm could have been chosen."""


HISTOGRAM_TOLERANCE = 1e-3
"""How far the entries of a context may be from summing to 1 (float32 rounding of a few hundred entries)."""


class OlderState(HushstreamError):
    """A user's state shows less spent than they are known to have spent, so it comes from an older copy."""


class Choice(NamedTuple):
    """A decision of the agent.

    Attributes:
        arm: the arm that was chosen.
        billionths: probability with which the arm was chosen, in units of 1e-9, as records hold it.
        model_version: version of the shared model that the choice follows from.
        slot_due: whether a slot falls due with this decision.
        repeated: whether the event was decided before; the answer is then the earlier one.
    """

    arm: int
    billionths: int
    model_version: int
    slot_due: bool
    repeated: bool


class Interaction(NamedTuple):
    """An interaction in clear: its context (`SharedPolicy.kept`), the arm on screen, and the reward in [0, 1]."""

    context: bytes
    arm: int
    reward: float

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> Interaction:
        """The interaction whose fields are among those of ``dumped``."""
        return cls(dumped["context"], dumped["arm"], dumped["reward"])


class Resolved(NamedTuple):
    """An interaction whose reward is known.

    Attributes:
        slot: the slot that covers it.
        number: the index of its decision among all decisions of the user.
        deadline_ms: log time at which its wait for a reward ends.
        context, arm, reward: see `Interaction`.
    """

    slot: int
    number: int
    deadline_ms: int
    context: bytes
    arm: int
    reward: float

    @property
    def interaction(self) -> Interaction:
        """The interaction."""
        return Interaction(*self[3:])


class Began(NamedTuple):
    """A slot that has begun: its number, the index of its first decision, and how many decisions it covers."""

    slot: int
    first: int
    length: int


class SlotChoice(Protocol):
    """How the interaction of a slot is chosen; the same for all users of a deployment.

    The interactions that wait for slots are a plain value (``waits``), which these methods take and return. Most users
    have no waiting interactions most of the time; they all share one empty value.

    Attributes:
        nothing: the value of ``waits`` for a new user.
        draws_first: whether `decided` has to be told of each slot that begins. It is also told of a decision at or
            after the ``ends_ms`` of ``waits``.
    """

    nothing: Any
    draws_first: bool

    def decided(self, waits: Any, agent: EdgeAgent, log_time_ms: int, began: Began | None) -> Any:
        """Take in that a decision was made at a log time, and the slot that began with it; return the new ``waits``.

        Coins come from the agent's key.
        """

    def resolved(self, waits: Any, one: Resolved) -> Any:
        """Take in a resolved interaction; return the new ``waits``."""

    def taken(self, waits: Any, agent: EdgeAgent, log_time_ms: int, slot: int) -> tuple[Interaction | None, Any]:
        """Return what a slot holds at a log time (None: the slot is null), and what waits for other slots."""

    def dump(self, waits: Any) -> dict[str, Any]:
        """Return ``waits`` as plain values, for a snapshot."""

    def load(self, dumped: Mapping[str, Any]) -> Any:
        """Return the ``waits`` that `dump` was given."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One fixed-size report.

    Attributes:
        report_id: its opaque id.
        content: its content, of the same size for every slot of the deployment.
        interaction: the interaction in it, None for null; it is never sent.
    """

    report_id: bytes
    content: bytes
    interaction: Interaction | None


class Allowance(NamedTuple):
    """What is kept of a user whose state is deleted, so that they cannot spend the same slots or quota twice.

    Attributes:
        decided: decisions in their life; their number determines when a slot falls due.
        due, sent: slots that fell due, and slots that were taken.
        period, used: the last period of their quota, and how many contexts they had in it.
        first: where slots are renewed, the number of the first decision of the newest slot; -1 before the first slot.
        renews_ms: where slots are renewed, the log time from which the next slot may begin.
    """

    decided: int = 0
    due: int = 0
    sent: int = 0
    period: int = 0
    used: int = 0
    first: int = -1
    renews_ms: int = 0

    def covers(self, other: Allowance) -> bool:
        """Whether everything that is spent in ``other`` is spent here too."""
        slots = all(mine >= theirs for mine, theirs in zip(self[:3], other[:3], strict=True))
        renewed = self.first >= other.first and self.renews_ms >= other.renews_ms
        return slots and renewed and (self.period, self.used) >= (other.period, other.used)


@dataclass(frozen=True, slots=True)
class EdgeTerms:
    """The terms that all agents of a deployment share; they never change while agents run.

    Attributes:
        policy: the learner's kernel and the shared models by track.
        after_interactions: a slot is due after this many decisions.
        lifetime_slots: how many slots a user has in their life; each costs the release's epsilon.
        levels: M, reward levels above 0.
        attribution_window_ms: a decision that was shown counts as reward 0 when this much log time has passed.
        choice: chooses the interaction that a slot holds.
        contexts_per_period: how many contexts of one user are learned from in ``quota_period_ms``; None: all.
        quota_period_ms: length of a period of the quota, in log time.
        exploration: draws an arm from the scores; None: the highest score is taken.
        renew_ms: how much log time after a slot fell due the next one may begin; None: the next slot begins at once.
        zone_key: the key that users' keys are derived from; None where each agent is given its own.
    """

    policy: SharedPolicy
    after_interactions: int
    lifetime_slots: int
    levels: int
    attribution_window_ms: int
    choice: SlotChoice
    contexts_per_period: int | None = None
    quota_period_ms: int = 86_400_000
    exploration: Exploration | None = None
    renew_ms: int | None = None
    zone_key: Key | None = None

    def user_key(self, user: str) -> Key:
        """The key that a user's coins and report ids come from."""
        assert self.zone_key is not None, "without a zone's key each agent has its own"
        return self.zone_key.derive("user", user)


T = TypeVar("T")
Mask: TypeAlias = NDArray[np.bool_] | None
"""(K,) which arms a request allows; None for all."""
Scores: TypeAlias = NDArray[np.floating]

_WORD = 1 << 64


def click_chance(click_rate: float) -> float | None:
    """h for a declared, public click rate; None if one interaction is drawn uniformly from all T.

    h is .8 for a rate up to .1, and .5 for a rate up to .3. Above, clicks are frequent enough for a uniform draw.

    Raises:
        ContributionError: the rate is not from 0 to 1.
    """
    if not 0 <= click_rate <= 1:
        raise ContributionError(f"expected a click rate from 0 to 1, got {click_rate!r}")
    if click_rate <= 0.1:
        return 0.8
    return 0.5 if click_rate <= 0.3 else None


@dataclass(frozen=True, slots=True)
class Candidates(Generic[T]):
    """The interactions that may go into one slot.

    Attributes:
        clicked: the first clicked interaction; None if there is none, or if h is None.
        drawn: an interaction drawn uniformly from those without a click; from all if h is None.
        count: from how many interactions ``drawn`` was drawn.
    """

    clicked: T | None = None
    drawn: T | None = None
    count: int = 0

    def observe(self, interaction: T, clicked: bool, chance: float | None, word: int) -> Candidates[T]:
        """The candidates after one more interaction, whose wait for a reward is over.

        Args:
            interaction: the interaction.
            clicked: whether its reward is above 0.
            chance: h, see `click_chance`.
            word: uniform below 2^64, this user's coin for this interaction.
        """
        if clicked and chance is not None:
            return self if self.clicked is not None else Candidates(interaction, self.drawn, self.count)
        count = self.count + 1
        # Reservoir of one (Vitter 1985): the newest of n stays with probability 1/n.
        drawn = interaction if word * count < _WORD else self.drawn
        return Candidates(self.clicked, drawn, count)

    def chosen(self, chance: float | None, word: int) -> T | None:
        """The interaction that the slot holds; None (null) if there is no candidate.

        Args:
            chance: h.
            word: uniform below 2^64, this user's coin for this slot.
        """
        wants_click = chance is not None and word < int(chance * _WORD)
        first, second = (self.clicked, self.drawn) if wants_click else (self.drawn, self.clicked)
        return second if first is None else first


class WaitingCandidates(NamedTuple):
    """What waits for slots where each slot has two candidates.

    Attributes:
        packed: resolved interactions whose reward window has not ended: the numbers and the context of each, one behind
            the other. As objects they would take a quarter of a user's memory.
        held: how many these are.
        ends_ms: the first of their deadlines.
        candidates: the candidates of each slot.
    """

    packed: bytes
    held: int
    ends_ms: int
    candidates: Mapping[int, Candidates[Interaction]]

    @classmethod
    def of(cls, resolved: Sequence[Resolved], candidates: Mapping[int, Candidates[Interaction]]) -> WaitingCandidates:
        """What waits, from interactions whose contexts have one length."""
        if not resolved and not candidates:
            return _NOTHING_WAITS
        ends_ms = min((one.deadline_ms for one in resolved), default=_NEVER_MS)
        return cls(b"".join(map(_pack_resolved, resolved)), len(resolved), ends_ms, candidates)

    @property
    def resolved(self) -> list[Resolved]:
        """The resolved interactions, oldest first."""
        size, found = len(self.packed) // max(self.held, 1), list[Resolved]()
        for start in range(0, len(self.packed), size or 1):
            slot, number, deadline_ms, arm, reward = _NUMBERS.unpack_from(self.packed, start)
            context = self.packed[start + _NUMBERS.size : start + size]
            found.append(Resolved(slot, number, deadline_ms, context, arm, reward))
        return found


_NUMBERS = struct.Struct("<iqqid")
"""Slot, number, deadline, arm and reward of a `Resolved`."""


def _pack_resolved(one: Resolved) -> bytes:
    slot, number, deadline_ms, context, arm, reward = one
    return _NUMBERS.pack(slot, number, deadline_ms, arm, reward) + context


_RESOLVED = ("slot", "index", "deadline_ms", "context", "arm", "reward")
"""The fields of a `Resolved` in a snapshot, in order."""
_NEVER_MS = 1 << 62
_NOTHING_WAITS = WaitingCandidates(b"", 0, _NEVER_MS, {})
_NO_CANDIDATES: Candidates[Interaction] = Candidates()


class TwoCandidates:
    """Keeps two candidates for a slot, the first clicked interaction and one drawn from the unclicked (`Candidates`).

    An interaction becomes a candidate when its reward window has ended, even if its reward came earlier. Otherwise
    rewarded interactions would become candidates before those that get no reward. The end of a phase ends all reward
    windows.
    """

    nothing = _NOTHING_WAITS
    draws_first = False

    def __init__(self, chance: float | None) -> None:
        """Choose with the probability that a slot holds the clicked candidate (`click_chance`)."""
        self._chance = chance

    def resolved(self, waits: WaitingCandidates, one: Resolved) -> WaitingCandidates:
        packed, held, ends_ms, candidates = waits
        return WaitingCandidates(packed + _pack_resolved(one), held + 1, min(ends_ms, one.deadline_ms), candidates)

    def decided(
        self, waits: WaitingCandidates, agent: EdgeAgent, log_time_ms: int, began: Began | None
    ) -> WaitingCandidates:
        return self._settled(waits, agent, log_time_ms)

    def _settled(self, waits: WaitingCandidates, agent: EdgeAgent, log_time_ms: int) -> WaitingCandidates:
        """Make candidates of the interactions whose reward window has ended."""
        if waits.ends_ms > log_time_ms:
            return waits
        waiting, candidates = waits.resolved, dict(waits.candidates)
        ended = [one for one in waiting if one.deadline_ms <= log_time_ms]
        for one in sorted(ended, key=attrgetter("number")):
            pair, word = candidates.get(one.slot, _NO_CANDIDATES), _word(agent.key, "slot-candidate", one.number)
            candidates[one.slot] = pair.observe(one.interaction, one.reward > 0, self._chance, word)
        return WaitingCandidates.of([one for one in waiting if one.deadline_ms > log_time_ms], candidates)

    def taken(
        self, waits: WaitingCandidates, agent: EdgeAgent, log_time_ms: int, slot: int
    ) -> tuple[Interaction | None, WaitingCandidates]:
        waits = self._settled(waits, agent, log_time_ms)
        pair = waits.candidates.get(slot)
        chosen = None if pair is None else pair.chosen(self._chance, _word(agent.key, "slot-choice", slot))
        resolved = [one for one in waits.resolved if one.slot != slot]
        candidates = {other: one for other, one in waits.candidates.items() if other != slot}
        return chosen, WaitingCandidates.of(resolved, candidates)

    def dump(self, waits: WaitingCandidates) -> dict[str, Any]:
        return {
            "resolved": [dict(zip(_RESOLVED, one, strict=True)) for one in waits.resolved],
            "candidates": [
                {
                    "slot": slot,
                    "count": pair.count,
                    "clicked": [] if pair.clicked is None else [pair.clicked._asdict()],
                    "drawn": [] if pair.drawn is None else [pair.drawn._asdict()],
                }
                for slot, pair in waits.candidates.items()
            ],
        }

    def load(self, dumped: Mapping[str, Any]) -> WaitingCandidates:
        resolved = [Resolved(*(item[name] for name in _RESOLVED)) for item in dumped["resolved"]]
        candidates = {item["slot"]: _candidates(item) for item in dumped["candidates"]}
        return WaitingCandidates.of(resolved, candidates)


def _candidates(item: Mapping[str, Any]) -> Candidates[Interaction]:
    clicked, drawn = (next(map(Interaction.load, item[name]), None) for name in ("clicked", "drawn"))
    return Candidates(clicked, drawn, item["count"])


def _word(key: Key, purpose: str, number: int) -> int:
    """A keyed uniform integer below 2^64."""
    return int.from_bytes(key.digest(purpose, number.to_bytes(8, "little"))[:8], "little")


_UNSPENT = Allowance()


class _Column(Generic[T]):
    """What a column of a table holds of one user, as an attribute of that name."""

    __slots__ = ("_name",)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, agent: EdgeAgent, owner: type) -> T:
        found: T = getattr(agent.table, self._name)[agent.row]
        return found

    def __set__(self, agent: EdgeAgent, value: T) -> None:
        getattr(agent.table, self._name)[agent.row] = value


_OF_A_USER: Mapping[str, int] = {**_UNSPENT._asdict(), "base_version": 0, "seen_ms": 0, "last": NO_DECISION}
"""The columns of numbers, and what they hold of a new user."""

_GROWTH = 64
"""So many rows are added at once: one by one, each column would be extended for every new user."""


class Table:
    """All that is kept of the users of a partition, as columns. A user is a row, and `EdgeAgent` shows it as an object.

    A row that is free is as empty as that of a new user.

    Attributes:
        terms: of all users.
        decisions: those of all users.
        user, key: of each row the user's name and key; the key is made when it is needed, as making it takes longer
            than the choice of an arm. A user whose key was given has no name.
        track, state, shows, _waits, and numbers: see `EdgeAgent`.
    """

    __slots__ = (
        *_OF_A_USER,
        "_empty",
        "_free",
        "_growth",
        "_waits",
        "decisions",
        "key",
        "shows",
        "state",
        "terms",
        "track",
        "user",
    )

    decided: array[int]
    due: array[int]
    sent: array[int]
    period: array[int]
    used: array[int]
    first: array[int]
    renews_ms: array[int]
    base_version: array[int]
    seen_ms: array[int]
    last: array[int]

    def __init__(self, terms: EdgeTerms, decisions: Decisions | None = None, growth: int = _GROWTH) -> None:
        """Begin without users; without ``decisions`` of a partition it has its own; ``growth`` rows come at once."""
        self.terms, self.decisions = terms, Decisions() if decisions is None else decisions
        self.user, self.track = list[str](), list[str]()
        self.key, self.state = list[Key | None](), list[Any]()
        self.shows, self._waits = list[Shows](), list[Any]()
        self._empty: Mapping[str, Any] = {
            **{name: array("q", [value]) for name, value in _OF_A_USER.items()},
            "user": [""],
            "track": [""],
            "key": [None],
            "state": [None],
            "shows": [NOTHING_SHOWN],
            "_waits": [terms.choice.nothing],
        }
        for name in _OF_A_USER:
            setattr(self, name, array("q"))
        self._free: list[int] = []
        self._growth = growth

    def begin(self, keys: Sequence[Key | str], tracks: Sequence[str], spent: Sequence[Allowance | None]) -> list[int]:
        """The rows of new users, at least one, or of some whose state was deleted; see `EdgeAgent`."""
        size, more, free = len(self.user), len(keys), self._free
        if len(free) < more:
            added = max(more, self._growth)
            for name, one in self._empty.items():
                getattr(self, name).extend(one * added)
            free[:0] = range(size + added - 1, size - 1, -1)
        rows = free[: -more - 1 : -1]
        del free[-more:]
        for row, key, track in zip(rows, keys, tracks, strict=True):
            self.track[row] = track
            if isinstance(key, str):
                self.user[row] = key
            else:
                self.key[row] = key
        for row, allowance in zip(rows, spent, strict=True):
            if allowance is not None:
                self._continue(row, allowance)
        return rows

    def _continue(self, row: int, spent: Allowance) -> None:
        """Go on from what a user has spent. The slot in progress is begun again."""
        for name, value in spent._asdict().items():
            getattr(self, name)[row] = value
        terms, agent = self.terms, self.agent(row)
        done = spent.decided % terms.after_interactions
        in_slot = done > 0 if terms.renew_ms is None else self._in_slot(row)
        if in_slot and spent.due < terms.lifetime_slots:
            # Its coins come from the key alone, so they are the same as before.
            first = spent.decided - done if terms.renew_ms is None else spent.first
            began = Began(spent.due, first, terms.after_interactions)
            self._waits[row] = terms.choice.decided(self._waits[row], agent, 0, began)

    def free(self, row: int) -> None:
        """Keep nothing of a user any longer."""
        for name, (value,) in self._empty.items():
            getattr(self, name)[row] = value
        self._free.append(row)

    def agent(self, row: int) -> EdgeAgent:
        """A user as an object."""
        agent = EdgeAgent.__new__(EdgeAgent)
        agent.table, agent.row = self, row
        return agent

    def count(self, rows: Sequence[int], times_ms: Sequence[int], held: int) -> tuple[list[int], list[int], list[int]]:
        """Count decisions of some rows, which `decisions` will hold under numbers from ``held`` on.

        The first one of a slot begins it. A later context of a user may have been seen already, so `seen_ms` stays.
        Returns of each its number among its user's decisions and the one before it in `decisions`, and the places of
        those with which a slot falls due.
        """
        terms, choice, waits = self.terms, self.terms.choice, self._waits
        decided, due, last, first = self.decided, self.due, self.last, self.first
        length, most, renew_ms = terms.after_interactions, terms.lifetime_slots, terms.renew_ms
        numbers, befores, falls_due = list[int](), list[int](), list[int]()
        for place, row in enumerate(rows):
            number, began = decided[row], None
            begins = number % length == 0 if renew_ms is None else self._renews(row, times_ms[place])
            # Without the cap of a life a user would get slots without end, and no bound on their cost would hold.
            if begins and due[row] < most:
                if choice.draws_first:
                    began = Began(due[row], number, length)
                if renew_ms is not None:
                    first[row] = number
            if began is not None or waits[row].ends_ms <= times_ms[place]:
                waits[row] = choice.decided(waits[row], self.agent(row), times_ms[place], began)
            numbers.append(number)
            befores.append(last[row])
            decided[row], last[row] = number + 1, held + place
            if renew_ms is None:
                falls = due[row] < most and number + 1 == (due[row] + 1) * length
            else:
                falls = first[row] >= 0 and number + 1 == first[row] + length
            if falls:
                due[row] += 1
                falls_due.append(place)
                if renew_ms is not None:
                    self.renews_ms[row] = times_ms[place] + renew_ms
        return numbers, befores, falls_due

    def _renews(self, row: int, log_time_ms: int) -> bool:
        """Where slots are renewed: whether the next decision is the first of a slot, if the user has slots left."""
        return not self._in_slot(row) and log_time_ms >= self.renews_ms[row]

    def _in_slot(self, row: int) -> bool:
        """Where slots are renewed: whether the newest slot has begun and is not due yet."""
        return self.first[row] >= 0 and self.decided[row] < self.first[row] + self.terms.after_interactions

    def _newest_slot(self, row: int, index: int) -> int:
        """Where slots are renewed: the number of the newest slot, if it covers a decision; otherwise -1."""
        if not 0 <= self.first[row] <= index < self.first[row] + self.terms.after_interactions:
            return -1
        return self.due[row] if self._in_slot(row) else self.due[row] - 1

    def visit(self, rows: Sequence[int], times_ms: Sequence[int]) -> list[int]:
        """Count a context of each of some rows; returns the places of those beyond their users' quotas."""
        terms, seen_ms, beyond = self.terms, self.seen_ms, list[int]()
        for row, now_ms in zip(rows, times_ms, strict=True):
            seen_ms[row] = now_ms
        if terms.contexts_per_period is None:
            return beyond
        for place, row in enumerate(rows):
            period = times_ms[place] // terms.quota_period_ms
            if period != self.period[row]:
                self.period[row], self.used[row] = period, 0
            self.used[row] = min(self.used[row] + 1, terms.contexts_per_period + 1)
            if self.used[row] > terms.contexts_per_period:
                beyond.append(place)
        return beyond

    def rewarded(
        self, rows: Sequence[int], held: Sequence[int], arms: Sequence[int], rewards: Sequence[float]
    ) -> tuple[list[Lesson], int]:
        """Take in rewards of decisions that wait, each once; the caller must have checked them, and learns the lessons.

        A reward implies that its arm was on screen, unless *shown* said otherwise. Returns what the rewards teach, and
        how many of them are of the arm that was decided.
        """
        catalogue = self.terms.policy.catalogue
        if catalogue is not None and catalogue.caps:
            for row, arm, decision in zip(rows, arms, map(self.decisions.__getitem__, held), strict=True):
                if decision.shown_arm == NOT_SHOWN:
                    self.agent(row).note_show(decision, arm)
        numbers, deadlines_ms, contexts, on_screen, agreed = self.decisions.reward_all(held, arms)
        return [*map(self.resolved, rows, numbers, deadlines_ms, contexts, on_screen, rewards)], agreed

    def resolved(self, row: int, number: int, deadline_ms: int, context: bytes, arm: int, reward: float) -> Lesson:
        """Take in an interaction whose reward is known; what it teaches is still to be learned."""
        terms, state = self.terms, self.state[row]
        if state is None:
            self.base_version[row], state = terms.policy.begin(self.track[row])
            self.state[row] = state
        slot = number // terms.after_interactions if terms.renew_ms is None else self._newest_slot(row, number)
        if self.sent[row] <= slot < terms.lifetime_slots:
            one = Resolved(slot, number, deadline_ms, context, arm, reward)
            self._waits[row] = terms.choice.resolved(self._waits[row], one)
        return Lesson(state, context, arm, reward)


class EdgeAgent:
    """The agent of one user: a row of a table, of its own unless others share it.

    It is not thread-safe. The outcome of a call depends only on the calls before it, the shared models and the user's
    key.

    Attributes:
        track: the track of the shared model that the user started from.
        state: what they learned alone; None before the first reward.
        base_version: the version of the model that they started from.
        decided, due, sent, period, used, first, renews_ms: see `Allowance`.
        seen_ms: log time of the last context.
        last: the number of their newest decision.
        shows: what they were shown of capped items.
        _waits: what waits for slots that were not taken yet, as `SlotChoice` holds it.
    """

    __slots__ = ("row", "table")

    table: Table
    row: int
    track, state, shows, _waits = _Column[str](), _Column[Any](), _Column["Shows"](), _Column[Any]()
    decided, due, sent, period = _Column[int](), _Column[int](), _Column[int](), _Column[int]()
    used, first, renews_ms = _Column[int](), _Column[int](), _Column[int]()
    base_version, seen_ms, last = _Column[int](), _Column[int](), _Column[int]()
    user = _Column[str]()

    def __init__(
        self,
        terms: EdgeTerms,
        key: Key | str,
        track: str,
        spent: Allowance | None = None,
        decisions: Decisions | None = None,
    ) -> None:
        """Begin the life of a new user, or continue that of a user whose state was deleted.

        Args:
            terms: the terms of the deployment.
            key: the user's key, or the user whom `EdgeTerms.user_key` gives one.
            track: the track of the shared model that the user starts from ("cold" for none).
            spent: the `allowance` that was kept when this user's state was deleted; None for a new user.
            decisions: those of all users of a partition; None for a user alone.
        """
        self.table = Table(terms, decisions, growth=1)
        (self.row,) = self.table.begin([key], [track], [spent])

    @property
    def terms(self) -> EdgeTerms:
        """The terms of the deployment."""
        return self.table.terms

    @property
    def decisions(self) -> Decisions:
        """Those of all users of the table."""
        return self.table.decisions

    @property
    def key(self) -> Key:
        """The user's key; coins and report ids come from it."""
        key = self.table.key[self.row]
        if key is None:
            key = self.table.key[self.row] = self.terms.user_key(self.user)
        return key

    @property
    def open(self) -> dict[str, OpenDecision]:
        """The decisions that wait, by event, oldest first."""
        decisions = self.decisions
        return {decisions.event(number): decisions[number] for number in reversed([*decisions.of(self.last)])}

    def allowance(self) -> Allowance:
        """What must be kept when this state is deleted."""
        return Allowance(self.decided, self.due, self.sent, self.period, self.used, self.first, self.renews_ms)

    def delete_state(self) -> None:
        """Delete everything that came from the user's contexts and clicks, waiting decisions included."""
        if self.state is not None:
            self.terms.policy.end(self.track, self.base_version)
            self.state = None
        self.decisions.drop(self.last)
        self.last, self.shows = NO_DECISION, NOTHING_SHOWN
        self._waits = self.terms.choice.nothing

    def within_quota(self, log_time_ms: int) -> bool:
        """Count one context of the user, and return whether the quota allows to learn from it."""
        return not self.table.visit([self.row], [log_time_ms])

    def may_choose(self, allowed: NDArray[np.bool_] | None, now_ms: int) -> NDArray[np.bool_] | None:
        """The allowed arms that caps and pins leave, bool (K,); None for all. See *Rules*."""
        catalogue = self.terms.policy.catalogue
        if catalogue is None or not catalogue.narrows:
            return allowed
        among = catalogue.offered if allowed is None else allowed
        waiting = map(self.decisions.__getitem__, self.decisions.of(self.last)) if catalogue.caps else ()
        return narrowed(catalogue, among, self.shows, waiting, now_ms)

    def decide_publicly(self, context: NDArray[np.float32], eligible: NDArray[np.bool_] | None = None) -> Choice:
        """Choose the best arm of the shared model alone; nothing of the decision is remembered, learned or reported."""
        policy = self.terms.policy
        shared = policy.shared(self.track)
        arm, ties = policy.highest.choose(policy.scores(shared.state, context), self.pick, eligible)
        return Choice(arm, CERTAIN // ties, shared.version, False, False)

    def decide(
        self,
        event_id: str,
        context: NDArray[np.float32],
        log_time_ms: int,
        eligible: NDArray[np.bool_] | None = None,
    ) -> Choice:
        """Choose an arm for a context of shape (d,) and remember the decision until feedback comes.

        Args:
            event_id: the application's name for this decision. Until its deadline, the same id gets the same answer
                again, also after its reward. At the deadline, call `expire` if the decision still waits.
            context: float32 (d,), a histogram; a copy is kept.
            log_time_ms: log time of the context; the deadline for feedback counts from it.
            eligible: bool (K,), or None for all arms.

        Raises:
            HushstreamError: the context is no histogram of the deployment's dimension, or no arm is eligible.
        """
        require_histogram(context, self.terms.policy.context_dimension)
        self.decisions.forget(log_time_ms)
        known = self.known(event_id, log_time_ms)
        return self.decide_new(event_id, context, log_time_ms, eligible) if known is None else known

    def known(self, event_id: str, log_time_ms: int) -> Choice | None:
        """The answer that an event got before; None for a new event, or after the event's deadline."""
        known = self.decisions.known(event_id, self.user, log_time_ms)
        return None if known is None else Choice(known.arm, known.propensity, known.model_version, False, True)

    def decide_new(
        self,
        event_id: str,
        context: NDArray[np.float32],
        log_time_ms: int,
        eligible: NDArray[np.bool_] | None = None,
    ) -> Choice:
        """See `decide`; the event must not be `known`, and the caller must have checked the context."""
        answers = choose(self.table, [self.row], [event_id], context[None], [eligible])
        numbers, befores, falls_due = self.table.count([self.row], [log_time_ms], self.decisions.end)
        self.seen_ms = log_time_ms
        deadline_ms, kept = log_time_ms + self.terms.attribution_window_ms, self.terms.policy.kept(context[None])
        self.decisions.extend([event_id], [self.user], kept, *answers, numbers, [deadline_ms], befores)
        (answer,) = zip(*answers, strict=True)
        return Choice(*answer, bool(falls_due), False)

    def shown(self, event_id: str, arm: int) -> JoinOutcome:
        """Record the arm that was on screen for a waiting event.

        Raises:
            HushstreamError: no such event waits, or there is no such arm.
        """
        decision = self._waiting(event_id)
        self._require_arm(arm)
        return self.shown_checked(decision, arm)

    def shown_checked(self, decision: OpenDecision, arm: int) -> JoinOutcome:
        """See `shown`, of a decision that waits; the arm is one."""
        outcome = self.decisions.show(decision.held, arm)
        if outcome is not JoinOutcome.REPEATED_FEEDBACK:
            self.note_show(decision, arm)
        return outcome

    def rewarded(self, event_id: str, arm: int, reward: float) -> JoinOutcome:
        """Learn from the reward in [0, 1] of a waiting event.

        Raises:
            HushstreamError: no such event waits, there is no such arm, or the reward is outside.
        """
        decision = self._waiting(event_id)
        self._require_arm(arm)
        # Written so that NaN, which compares false, is refused.
        if not 0.0 <= reward <= 1.0:
            raise HushstreamError("reward: expected a number in [0, 1], got one outside or NaN")
        lessons, agreed = self.table.rewarded([self.row], [decision.held], [arm], [reward])
        learn(self.terms.policy, lessons)
        return JoinOutcome.REWARDED if agreed else JoinOutcome.OTHER_ARM

    def expire(self, event_id: str) -> JoinOutcome:
        """Close a waiting event whose deadline has passed: what was shown without a reward has reward 0.

        Raises:
            HushstreamError: no such event waits.
        """
        decision = self._waiting(event_id)
        self.decisions.close(decision.held)
        if decision.shown_arm == NOT_SHOWN:
            return JoinOutcome.NEVER_SHOWN
        learn(self.terms.policy, (self.expired(decision),))
        return JoinOutcome.EXPIRED_AS_ZERO

    def expired(self, decision: OpenDecision) -> Lesson:
        """What a decision teaches that was shown and whose wait has ended without a reward."""
        number, deadline_ms, context = decision.number, decision.deadline_ms, decision.context
        return self.table.resolved(self.row, number, deadline_ms, context, decision.shown_arm, 0.0)

    def current_state(self) -> LearnerState:
        """The state that the next decision follows from: the user's own, or the shared one before they have one."""
        own: LearnerState | None = self.state
        if own is not None:
            return own
        shared: LearnerState = self.terms.policy.shared(self.track).state
        return shared

    def score_gap(
        self,
        event_id: str,
        context: NDArray[np.float32],
        eligible: NDArray[np.bool_] | None,
        arm: int,
        propensity: int,
    ) -> float:
        """How much scores must differ from today's for another arm and propensity than what was chosen for an event.

        A small gap shows that the answers differ by rounding alone.
        """
        exploration, scores = self.terms.exploration, self.terms.policy.scores(self.current_state(), context)
        if exploration is None:
            return highest_gap(scores, eligible, Drawn(arm, propensity))
        return exploration.tie_gap(scores, eligible, self._drawn(event_id), Drawn(arm, propensity))

    def public_score_gap(
        self, context: NDArray[np.float32], eligible: NDArray[np.bool_] | None, arm: int, propensity: int
    ) -> float:
        """The same of `decide_publicly`."""
        policy = self.terms.policy
        scores = policy.scores(policy.shared(self.track).state, context)
        return highest_gap(scores, eligible, Drawn(arm, propensity))

    def take_slot(self, log_time_ms: int | None = None) -> Slot:
        """Return the oldest slot that is due and not yet taken; its content no longer changes after this.

        Args:
            log_time_ms: log time; None: the log time of the last context.

        Raises:
            HushstreamError: none is due.
        """
        (slot,) = take_slots(self.terms, [self], self.seen_ms if log_time_ms is None else log_time_ms)
        return slot

    def dump(self) -> dict[str, Any]:
        """The user's whole state as plain values, for a snapshot; their decisions are in `decisions`."""
        return {
            "line": self.track,
            "learned": self.state is not None,
            "state": b"" if self.state is None else self.terms.policy.dump_own(self.state),
            "base_version": self.base_version,
            **self.allowance()._asdict(),
            "seen_ms": self.seen_ms,
            "last": self.last,
            **self.terms.choice.dump(self._waits),
            **({"shows": dump_shows(self.shows)} if self.shows else {}),
        }

    @classmethod
    def load(
        cls,
        terms: EdgeTerms,
        key: Key | str,
        dumped: Mapping[str, Any],
        spent: Allowance | None = None,
        decisions: Decisions | None = None,
    ) -> EdgeAgent:
        """Restore the agent that `dump` described.

        An agent restored from an older copy gives the numbers of slots that were sent before to slots with other
        content. The shuffler drops these by their ids, so they cost the user nothing, and only the shuffler's zone sees
        them. But what they hold is lost to the model, and the quota begins where the copy stood. A copy does not show
        its age. So keep `allowance` in a place that a restored backup does not overwrite, and pass it as ``spent``.

        Args:
            terms: the terms of the deployment.
            key: as in `__init__`, the same as when the state was dumped.
            dumped: from `dump`.
            spent: the newest `allowance` that is known of this user; None: an older copy is accepted.
            decisions: as in `__init__`; without them, the user has none.

        Raises:
            OlderState: less is spent in ``dumped`` than in ``spent``. A new agent made with ``spent`` can continue,
                without what the user had learned.
        """
        agent = cls(terms, key, dumped["line"], None, decisions)
        agent.restore(dumped)
        if spent is not None and not agent.allowance().covers(spent):
            raise OlderState(
                f"state: expected no less spent than is known ({spent}), got an older copy ({agent.allowance()})"
            )
        return agent

    def restore(self, dumped: Mapping[str, Any]) -> None:
        """Take over what `dump` gave, all but the track."""
        terms = self.terms
        self.last, self.base_version = dumped["last"], dumped["base_version"]
        if dumped["learned"]:
            self.state = terms.policy.load_own(self.track, self.base_version, dumped["state"])
        self.decided, self.due, self.sent = dumped["decided"], dumped["due"], dumped["sent"]
        self.period, self.used, self.seen_ms = dumped["period"], dumped["used"], dumped["seen_ms"]
        self.first, self.renews_ms = dumped.get("first", _UNSPENT.first), dumped.get("renews_ms", _UNSPENT.renews_ms)
        self._waits, self.shows = terms.choice.load(dumped), load_shows(dumped.get("shows", ()))

    def note_show(self, decision: OpenDecision, arm: int) -> None:
        """Note that an arm was on screen, if its item has a cap."""
        catalogue = self.terms.policy.catalogue
        if catalogue is not None and catalogue.caps:
            at_ms = decision.deadline_ms - self.terms.attribution_window_ms
            self.shows = noted(self.shows, catalogue, arm, at_ms)

    def drawn(self, exploration: Exploration, event_id: str, scores: Scores, eligible: Mask) -> Drawn:
        """Draw an arm and its propensity from the scores, with the event's number."""
        return draw(exploration.weights(scores, eligible), self._drawn(event_id))

    def _drawn(self, event_id: str) -> int:
        """The keyed number by which an event draws its arm; the same for every request of the event."""
        # From the event's id: with the count of decisions, a client could repeat a request until it got another item.
        return int.from_bytes(self.key.digest("exploration", event_id.encode()), "little") % CERTAIN

    def pick(self, ties: int, ahead: int = 0) -> int:
        """Which of some tied arms the next decision takes, or one that comes ``ahead`` decisions after it."""
        return uniform(self.key, "tie", self.decided + ahead, ties)

    def _waiting(self, event_id: str) -> OpenDecision:
        decision = self.decisions.waiting(event_id, self.user)
        if decision is None:
            raise HushstreamError("feedback: expected an event that waits for it, got an unknown or resolved one")
        return decision

    def _require_arm(self, arm: int) -> None:
        arms = self.terms.policy.arms
        if not 0 <= arm < arms:
            raise HushstreamError(f"feedback: expected an arm from 0 to {arms - 1}, got another number")


def choose(
    table: Table, rows: Sequence[int], events: Sequence[str], contexts: NDArray[Any], masks: Sequence[Mask]
) -> tuple[list[int], list[int], list[int]]:
    """The arms for n contexts (n, d) of some rows of a table, their propensities in billionths, and model versions.

    The decisions of one user are in their order. What is chosen for one does not depend on the others.

    Raises:
        NoEligibleArm: a mask allows none.
    """
    policy, exploration = table.terms.policy, table.terms.exploration
    states, versions = [*map(table.state.__getitem__, rows)], [*map(table.base_version.__getitem__, rows)]
    if None in states:
        tracks = [*map(table.track.__getitem__, rows)]
        shared = {track: policy.shared(track) for track in set(tracks)}
        for place, state in enumerate(states):
            if state is None:
                model = shared[tracks[place]]
                versions[place], states[place] = model.version, model.state
    scores = policy.scores_of(states, contexts)
    if exploration is not None:
        agents = map(table.agent, rows)
        drawn = [*map(EdgeAgent.drawn, agents, [exploration] * len(rows), events, scores, masks)]
        return [one.arm for one in drawn], [one.propensity for one in drawn], versions
    if len(rows) == 1:
        # What many share costs more than this row.
        arm, count = policy.highest.choose(scores[0], table.agent(rows[0]).pick, masks[0])
        return [arm], [CERTAIN // count], versions
    for place, mask in enumerate(masks):
        if mask is not None:
            if not mask.any():
                raise NoEligibleArm(policy.arms)
            scores[place, ~mask] = -np.inf
    arms, ties = best_of(scores, lambda at, count: table.agent(rows[at]).pick(count, rows[:at].count(rows[at])))
    return arms, [CERTAIN // count for count in ties], versions


def take_slots(terms: EdgeTerms, agents: Iterable[EdgeAgent], log_time_ms: int) -> list[Slot]:
    """Take a slot of each of some agents; see `EdgeAgent.take_slot`. What they hold is encoded together."""
    policy, taken = terms.policy, list[tuple[bytes, Interaction | None]]()
    for agent in agents:
        if agent.sent >= agent.due:
            raise HushstreamError(
                f"take_slot: expected a slot that is due, got {agent.sent} of {agent.due} taken already"
            )
        number = agent.sent
        agent.sent += 1
        interaction, agent._waits = terms.choice.taken(agent._waits, agent, log_time_ms, number)
        taken.append((agent.key.digest("report-id", number.to_bytes(8, "little")), interaction))
    held = [one for _, one in taken if one is not None]
    levels = [reward_level(one.reward, terms.levels) for one in held]
    contents = iter(policy.contents([one.context for one in held], [one.arm for one in held], levels) if held else ())
    return [Slot(name, policy.null() if one is None else next(contents), one) for name, one in taken]


def learn(policy: SharedPolicy, lessons: Sequence[Lesson]) -> None:
    """Learn lessons: those of different users together, those of one user in their order."""
    while lessons:
        # Later lessons of a user come first here, so that the earliest one stays.
        now = {id(lesson.state): place for place, lesson in reversed([*enumerate(lessons)])}
        earliest = lessons if len(now) == len(lessons) else [lessons[place] for place in sorted(now.values())]
        policy.learn_all(earliest)
        kept = set(now.values())
        lessons = [] if earliest is lessons else [one for place, one in enumerate(lessons) if place not in kept]


# Which interaction a slot holds, where it is drawn before it happens.


class DrawnTargets(NamedTuple):
    """What waits for slots where the interaction is drawn before it happens.

    Attributes:
        targets: the index of each drawn decision, and the slot that its interaction goes into.
        kept: the slots whose drawn interaction is resolved, and that interaction.
    """

    targets: dict[int, int]
    kept: dict[int, Interaction]
    ends_ms: int = _NEVER_MS


# Most users have neither most of the time, so they share these: an empty dictionary for each takes 64 bytes or more.
_NO_TARGETS: dict[int, int] = {}
_NOTHING_KEPT: dict[int, Interaction] = {}
_NOTHING_DRAWN = DrawnTargets(_NO_TARGETS, _NOTHING_KEPT)


class DrawnBefore:
    """Draws, from the user's key, one of the decisions that a slot covers before any of them is made."""

    nothing = _NOTHING_DRAWN
    draws_first = True

    def decided(self, waits: DrawnTargets, agent: EdgeAgent, log_time_ms: int, began: Began | None) -> DrawnTargets:
        if began is None:
            return waits
        target = began.first + uniform(agent.key, "slot-target", began.slot, began.length)
        return waits._replace(targets={**waits.targets, target: began.slot})

    def resolved(self, waits: DrawnTargets, one: Resolved) -> DrawnTargets:
        aimed = waits.targets.get(one.number)
        return waits if aimed is None else waits._replace(kept={**waits.kept, aimed: one.interaction})

    def taken(
        self, waits: DrawnTargets, agent: EdgeAgent, log_time_ms: int, slot: int
    ) -> tuple[Interaction | None, DrawnTargets]:
        targets = {index: aimed for index, aimed in waits.targets.items() if aimed != slot} or _NO_TARGETS
        kept = {other: one for other, one in waits.kept.items() if other != slot} or _NOTHING_KEPT
        return waits.kept.get(slot), _drawn_targets(targets, kept)

    def dump(self, waits: DrawnTargets) -> dict[str, Any]:
        return {
            "targets": [{"index": index, "slot": slot} for index, slot in waits.targets.items()],
            "kept": [{"slot": slot, **one._asdict()} for slot, one in waits.kept.items()],
        }

    def load(self, dumped: Mapping[str, Any]) -> DrawnTargets:
        targets = {item["index"]: item["slot"] for item in dumped["targets"]} or _NO_TARGETS
        kept = {item["slot"]: Interaction.load(item) for item in dumped["kept"]} or _NOTHING_KEPT
        return _drawn_targets(targets, kept)


def _drawn_targets(targets: dict[int, int], kept: dict[int, Interaction]) -> DrawnTargets:
    return DrawnTargets(targets, kept) if targets or kept else _NOTHING_DRAWN


def uniform(key: Key, purpose: str, number: int, below: int) -> int:
    """A keyed uniform integer in [0, below): 128 bits reduced, so its bias is under below * 2^-128."""
    return int.from_bytes(key.digest(purpose, number.to_bytes(8, "little")), "little") % below


# What an item's rules leave.


class Shown(NamedTuple):
    """When a user was shown a capped item, oldest first, and the catalogue version with which that item entered."""

    entered: int
    times_ms: tuple[int, ...]


Shows: TypeAlias = Mapping[int, Shown]
"""What a user was shown of capped items, in the order of rows."""

NOTHING_SHOWN: Shows = MappingProxyType({})
"""All users without capped shows have this one."""


def noted(shows: Shows, catalogue: Catalogue, row: int, at_ms: int) -> Shows:
    """The shows with one more; those that no cap needs any longer are dropped.

    Args:
        shows: of the user, before.
        catalogue: the items.
        row: of the item on screen.
        at_ms: log time of the decision.
    """
    cap = catalogue.caps.get(row)
    if cap is None:
        return shows
    kept = {other: one for other, one in shows.items() if _recent(catalogue, other, one, at_ms)}
    times = (*kept[row].times_ms, at_ms) if row in kept else (at_ms,)
    # Feedback comes in any order.
    kept[row] = Shown(int(catalogue.entries[row]), tuple(sorted(times)[-cap.shows :]))
    return dict(sorted(kept.items()))


def narrowed(
    catalogue: Catalogue, allowed: NDArray[np.bool_], shows: Shows, waiting: Iterable[OpenDecision], now_ms: int
) -> NDArray[np.bool_]:
    """(K,) which of the allowed rows caps and pins leave; at least one if one is allowed.

    Args:
        catalogue: the items.
        allowed: (K,) those on offer that the request allows.
        shows: what the user was shown.
        waiting: their decisions that wait for feedback.
        now_ms: log time.
    """
    free = allowed.copy()
    if catalogue.caps:
        counts = Counter(one.arm for one in waiting if one.shown_arm == NOT_SHOWN)
        for row, one in shows.items():
            counts[row] += _recent(catalogue, row, one, now_ms)
        for row in counts.keys() & catalogue.caps.keys():
            free[row] &= counts[row] < catalogue.caps[row].shows
    if not free.any():
        free = allowed
    pinned = free & catalogue.pinned
    return pinned if pinned.any() else free


def _recent(catalogue: Catalogue, row: int, one: Shown, now_ms: int) -> int:
    """How many shows count toward the cap of the item that a row has now."""
    cap = catalogue.caps.get(row)
    if cap is None or one.entered != catalogue.entries[row]:
        return 0
    return sum(at_ms > now_ms - 1000 * cap.within_seconds for at_ms in one.times_ms)


def dump_shows(shows: Shows) -> list[dict[str, Any]]:
    """The shows as plain values."""
    return [{"row": row, **one._asdict()} for row, one in shows.items()]


def load_shows(dumped: Iterable[Mapping[str, Any]]) -> Shows:
    """The shows that `dump_shows` gave."""
    return {one["row"]: Shown(one["entered"], tuple(one["times_ms"])) for one in dumped} or NOTHING_SHOWN


# What a context is.


def normalised(contexts: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of (n, d) are histograms: no entry below 0, sum 1 within the tolerance."""
    if not len(contexts):
        return np.zeros(0, dtype=np.bool_)
    sums = contexts.sum(axis=1, dtype=np.float64)
    good: NDArray[np.bool_] = (np.abs(sums - 1.0) <= HISTOGRAM_TOLERANCE) & (contexts.min(axis=1) >= 0)
    return good


def is_normalised(context: Sequence[float]) -> bool:
    """Whether one row of float32 numbers is a histogram, as `normalised` decides it."""
    return abs(sum(context) - 1.0) <= HISTOGRAM_TOLERANCE and min(context) >= 0


def require_histogram(context: NDArray[np.float32], dimension: int) -> None:
    """Refuse a context that is not a histogram with ``dimension`` entries.

    Raises:
        HushstreamError: another shape or type, an entry below 0, or a sum other than 1.
    """
    if context.shape != (dimension,) or context.dtype != np.float32:
        raise HushstreamError(
            f"context: expected float32 of shape ({dimension},), got {context.dtype} of shape {context.shape}"
        )
    # Written so that NaN, which compares false, is refused.
    if not (context.min() >= 0 and abs(float(context.sum(dtype=np.float64)) - 1.0) <= HISTOGRAM_TOLERANCE):
        raise HushstreamError("context: expected entries of at least 0 that sum to 1, got others")
