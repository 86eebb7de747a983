"""The topics of PDOL."""

from __future__ import annotations

from hushstream.engine.declare import topics
from hushstream.schemas.topics import LONG_MS, OPERATOR, PUBLISHED, PartitionRule, Topic

EDGE_ZONE, SERVER_ZONE = "edge", "server"
"""Whose operators may see what; the server's workers hold no key."""

RECORDS = topics.asked(
    "records",
    ("Record", "RecordBatch", "Label", "LabelBatch", "Membership", "Seal", "Forget"),
    EDGE_ZONE,
    "learner",
    rule=PartitionRule.TRACK,
    ticks=False,
    # Records are slots, which are public, but labels lie beside them, and who is labelled is not.
    private_lag=True,
)
"""What comes at the nodes of a domain, in its order: records in clear, and their labels."""

PREDICTIONS = topics.journal("predictions", ("Predictions",), EDGE_ZONE, PartitionRule.HOME, "learner", client="reads")

PARAMETERS = Topic(
    name="parameters",
    schemas=("Parameters", "Membership", "Seal"),
    zone=PUBLISHED,
    partition_rule=PartitionRule.HOME,
    count="learner",
    retention_ms=LONG_MS,
    noised=True,
    names_users=False,
    tombstones=False,
    ticks=False,
    private_lag=False,
    reader=OPERATOR,
)
"""What each node sends in the form of the paper, for its neighbours, and that a phase has ended at it."""

_SUMS = frozenset({"releases", "models", "dead-letters-server"})
"""What there is where noised sums are shared."""

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
"""All that a deployment may have."""


def topics_of(gossips: bool) -> tuple[Topic, ...]:
    """Those that a deployment has."""
    return tuple(topic for topic in TOPICS if (topic.name not in _SUMS if gossips else topic is not PARAMETERS))
