"""What an `EdgeAgent` agreed to, and the values that go in and out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hushstream.learners.exploration import WHOLE, Exploration
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.choosing import DrawnBefore, Interaction, SlotChoice
from hushstream.systems.p2b.edge.policy import SharedPolicy

CERTAIN = WHOLE
"""Propensities are integers in units of 1e-9; this one means that no other arm could have been chosen."""


HISTOGRAM_TOLERANCE = 1e-3
"""How far the entries of a context may be from summing to 1 (float32 rounding of a few hundred entries)."""


class OlderState(HushstreamError):
    """A user's state lies behind what they are known to have spent: it comes from an older copy."""


class Choice(NamedTuple):
    """What was decided: arm, version of the shared model under it, whether a slot is due now.

    ``billionths``: probability with which the arm was chosen, in units of 1e-9, as records hold it.
    ``repeated``: the event is one that still waits for feedback, and this is the answer that it got before.
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


@dataclass(frozen=True, slots=True)
class Slot:
    """One padded slot: an opaque id, content of the deployment's size, and (never sent) the interaction in it."""

    report_id: bytes
    content: bytes
    interaction: Interaction | None


class Allowance(NamedTuple):
    """What stays of a user whose state is given up, so that nothing that they have spent comes back.

    Attributes:
        decided: decisions in their life, which say when a slot falls due.
        due, sent: slots that fell due, and that were taken.
        period, used: the last period of their quota, and contexts in it.
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
        """Whether all that ``other`` has spent is spent here as well."""
        slots = all(mine >= theirs for mine, theirs in zip(self[:3], other[:3], strict=True))
        renewed = self.first >= other.first and self.renews_ms >= other.renews_ms
        return slots and renewed and (self.period, self.used) >= (other.period, other.used)


@dataclass(frozen=True, slots=True)
class EdgeTerms:
    """What an agent agreed to: shared by all agents of a deployment, never changed under them.

    Attributes:
        policy: the learner's kernel and the shared models by track.
        after_interactions: decisions per slot.
        lifetime_slots: slots in a user's life; each costs the release's epsilon.
        levels: reward levels above 0 (M).
        attribution_window_ms: after which a shown decision counts as reward 0.
        contexts_per_period: contexts of one user that are learned from in a period of ``quota_period_ms`` of
            log time; None for no quota.
        choice: which interaction a slot holds.
        exploration: what draws an arm from the scores; None where the highest score is taken.
        renew_ms: after a slot fell due, the next one begins so much log time later at the earliest; None where slots
            follow one another.
    """

    policy: SharedPolicy
    after_interactions: int
    lifetime_slots: int
    levels: int
    attribution_window_ms: int
    contexts_per_period: int | None = None
    quota_period_ms: int = 86_400_000
    choice: SlotChoice = field(default_factory=DrawnBefore)
    exploration: Exploration | None = None
    renew_ms: int | None = None
