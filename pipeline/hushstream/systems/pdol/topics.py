"""The topics of PDOL."""

from __future__ import annotations

from hushstream.engine.declare import topics
from hushstream.schemas.topics import LONG_MS, PartitionRule, Topic

EDGE_ZONE, SERVER_ZONE = "edge", "server"
"""The zones; the server's workers have no key."""

RECORDS = topics.requests(
    "records",
    ("Record", "RecordBatch", "Label", "LabelBatch", "Membership", "Seal", "Forget"),
    EDGE_ZONE,
    "learner",
    rule=PartitionRule.TRACK,
    ticks=False,
    # The number of records is public, but labels are on the same topic, and which records are labelled is private.
    private_lag=True,
)
"""Input of the nodes of a domain, in order: records in clear, and their labels."""

PREDICTIONS = topics.journal("predictions", ("Predictions",), EDGE_ZONE, PartitionRule.HOME, "learner", client="reads")

PARAMETERS = topics.published(
    "parameters",
    *("Parameters", "Membership", "Seal"),
    kept_ms=LONG_MS,
    noised=True,
    rule=PartitionRule.HOME,
    count="learner",
)
"""In the paper's form: parameters of each node for its neighbours, and its phase ends."""

_SUMS = frozenset({"releases", "models", "dead-letters-server"})
"""Topics if noised sums are shared."""

TOPICS = (
    RECORDS,
    PREDICTIONS,
    topics.releases("releases", "GradientSum", "Membership", "Seal"),
    topics.models("LinearModel"),
    topics.account("ledger", "LedgerEntry", "scopes"),
    topics.marks(EDGE_ZONE, "learner"),
    topics.dead_letters(EDGE_ZONE, "learner"),
    topics.dead_letters(SERVER_ZONE, "tracks"),
    PARAMETERS,
)
"""All topics that a deployment may have."""


def topics_of(gossips: bool) -> tuple[Topic, ...]:
    """The topics of a deployment."""
    return tuple(topic for topic in TOPICS if (topic.name not in _SUMS if gossips else topic is not PARAMETERS))
