"""Outcomes of ratings, questions and slots, each with its class, and reasons for refusals."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from hushstream.engine.declare.outcomes import OUTCOMES, Outcome
from hushstream.engine.declare.role import MetricClass


class BgtOutcome(StrEnum):
    """The outcomes of this system, in addition to those of `hushstream.engine.declare.outcomes`."""

    RATED = "rated"
    """A record of ratings. Their number depends on content."""
    ASKED = "asked"
    """A question for predictions."""
    ROUND = "round"
    """A round was opened."""
    NULLED_SLOT = "nulled_slot"
    """A slot that broke a bound: it counts as null."""


class BgtRefusal(StrEnum):
    """Why a record goes to the dead letters, beside `hushstream.engine.declare.outcomes.Refusal`."""

    BAD_RATINGS = "bad_ratings"
    """Unknown items, ratings off the scale or not numbers, or columns of different lengths; the whole record is
    refused."""
    BAD_QUESTION = "bad_question"
    """Unknown items, none, or too many."""
    BAD_ROUND = "bad_round"
    """A round that is invalid in this deployment, or not the next one."""
    UNSIGNED_ROUND = "unsigned_round"
    """Where devices make slots: a round that the aggregator of this deployment has not signed."""
    OTHER_ROUND = "other_round"
    """A slot of a round that is not open."""


REASONS = tuple(map(str, BgtRefusal))


def _shared(*outcomes: Outcome) -> Mapping[str, MetricClass]:
    return {str(one): OUTCOMES[one] for one in outcomes}


RATER_OUTCOMES: Mapping[str, MetricClass] = {
    **_shared(Outcome.SLOT_SENT, Outcome.MODEL_ADOPTED, Outcome.SEAL, Outcome.FORGOTTEN, Outcome.REJECTED),
    # Who rates, how often, and who asks is content.
    BgtOutcome.RATED: "zone-private",
    BgtOutcome.ASKED: "zone-private",
    BgtOutcome.ROUND: "slot-public",
}

COLLECTOR_OUTCOMES: Mapping[str, MetricClass] = {
    **_shared(
        Outcome.SLOT,
        Outcome.REPEATED_SLOT,
        Outcome.RELEASE,
        Outcome.RELEASE_WITHHELD,
        Outcome.DIVERGED,
        Outcome.SEAL,
        Outcome.REJECTED,
    ),
    BgtOutcome.ROUND: "slot-public",
    # Which slots are null is what the guarantee hides.
    BgtOutcome.NULLED_SLOT: "zone-private",
}

AGGREGATOR_OUTCOMES: Mapping[str, MetricClass] = _shared(
    Outcome.RELEASE, Outcome.REPEATED_RELEASE, Outcome.MODEL, Outcome.SEAL, Outcome.REJECTED
)
