"""The topics of a BGTplanner deployment."""

from __future__ import annotations

from hushstream.engine.declare import topics
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
"""Padded slots without a name, each behind the record that opens its round."""

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
