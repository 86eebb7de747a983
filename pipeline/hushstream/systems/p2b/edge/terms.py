"""The terms that an `EdgeAgent` works by, and the values that go in and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.exploration import WHOLE, Exploration
from hushstream.privacy.keys import Key
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.policy import SharedPolicy

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

    @property
    def propensity(self) -> float:
        """Probability with which the arm was chosen, in [0, 1]."""
        return self.billionths / CERTAIN


class Interaction(NamedTuple):
    """An interaction in clear: context (d,) or bytes (n,) of a feature row, the arm on screen, reward in [0, 1]."""

    context: NDArray[Any]
    arm: int
    reward: float

    def dump(self) -> dict[str, Any]:
        """The interaction as plain values, for a snapshot."""
        return {"context": self.context.tobytes(), "arm": self.arm, "reward": self.reward}

    @classmethod
    def load(cls, dumped: Mapping[str, Any], form: type[np.generic]) -> Interaction:
        """The interaction that `dump` described; ``form`` is the type of an entry of its context."""
        return cls(np.frombuffer(dumped["context"], form), dumped["arm"], dumped["reward"])


class Resolved(NamedTuple):
    """An interaction whose reward is known.

    Attributes:
        number: the index of its decision among all decisions of the user.
        deadline_ms: log time at which its wait for a reward ends.
        interaction: the interaction.
    """

    number: int
    deadline_ms: int
    interaction: Interaction


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
    """

    nothing: Any

    def decided(self, waits: Any, key: Key, log_time_ms: int, began: Began | None) -> Any:
        """Take in that a decision was made at a log time, and the slot that began with it; return the new ``waits``."""

    def resolved(self, waits: Any, slot: int, one: Resolved) -> Any:
        """Take in a resolved interaction of the decisions that a slot covers; return the new ``waits``."""

    def taken(self, waits: Any, key: Key, log_time_ms: int, slot: int) -> tuple[Interaction | None, Any]:
        """Return what a slot holds at a log time (None: the slot is null), and what waits for other slots."""

    def dump(self, waits: Any) -> dict[str, Any]:
        """Return ``waits`` as plain values, for a snapshot."""

    def load(self, dumped: Mapping[str, Any]) -> Any:
        """Return the ``waits`` that `dump` was given."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One padded slot.

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
