"""The topics of a BGTplanner deployment, the outcomes of ratings, questions and slots, and reasons for refusals."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from hushstream.engine.declare import topics
from hushstream.engine.declare.outcomes import OUTCOMES, Outcome
from hushstream.engine.declare.role import MetricClass
from hushstream.schemas.topics import PartitionRule, Topic

EDGE_ZONE, SHUFFLER_ZONE, SERVER_ZONE = "edge", "shuffler", "server"
"""The zones; the server's workers have no key."""

RATINGS = topics.requests(
    "ratings", ("Ratings", "RatingQuery", "Seal", "Forget"), EDGE_ZONE, "learner", ticks=False, private_lag=True
)
"""Ratings of users, questions for predictions, and the ends of rounds."""

PREDICTIONS = topics.journal(
    "predictions", ("RatingPredictions",), EDGE_ZONE, PartitionRule.HOME, "learner", client="reads"
)

UPDATES = topics.unnamed(
    "updates",
    ("RatingRound", "ModelStatement", "RatingSlot", "SealedRatingSlot", "Seal"),
    SHUFFLER_ZONE,
    # There is one collector, and raters of all partitions write to it.
    PartitionRule.TRACK,
    "shuffler",
    # A slot is the whole allowance of a user in its round.
    noised=True,
    ticks=False,
    private_lag=False,
)
"""Fixed-size reports without a name, each behind the record that opens its round."""

# A rater that starts now needs the open round, however long ago it was opened.
ROUNDS = topics.published("rounds", "RatingRound", kept_ms=None, noised=False)
"""The next round, computed from releases alone."""

STATEMENTS = topics.statements()
"""Signed versions of the model; only where devices make slots."""

TOPICS = (
    RATINGS,
    PREDICTIONS,
    UPDATES,
    topics.journal("journal-collector", ("RoundJournal",), SHUFFLER_ZONE, PartitionRule.HOME, "shuffler"),
    topics.releases("releases", "RatingSums", "Seal"),
    topics.models("RatingModel"),
    ROUNDS,
    STATEMENTS,
    topics.account("ledger", "LedgerEntry", "scopes"),
    topics.marks(EDGE_ZONE, "learner"),
    topics.marks(SHUFFLER_ZONE, "shuffler"),
    topics.dead_letters(EDGE_ZONE, "learner"),
    topics.dead_letters(SHUFFLER_ZONE, "shuffler"),
    topics.dead_letters(SERVER_ZONE, "tracks"),
)


def topics_of(devices: bool) -> tuple[Topic, ...]:
    """The topics of a deployment. Where devices make slots, it has none of ratings and predictions."""
    if devices:
        return tuple(topic for topic in TOPICS if topic.zone != EDGE_ZONE)
    return tuple(topic for topic in TOPICS if topic is not STATEMENTS)


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
