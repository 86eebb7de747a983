"""The topics of PDOL."""

from __future__ import annotations

from hushstream.engine import topics
from hushstream.schemas.topics import SHORT_MS, PartitionRule, Topic

EDGE_ZONE, SERVER_ZONE = "edge", "server"
"""Whose operators may see what; the server's workers hold no key."""

RECORDS = Topic(
    name="records",
    schemas=("Record", "Label", "Seal", "Forget"),
    zone=EDGE_ZONE,
    partition_rule=PartitionRule.LINE,
    count="home",
    retention_ms=SHORT_MS,
    noised=False,
    names_users=True,
    tombstones=True,
    ticks=False,
    # Records are slots, which are public, but labels lie beside them, and who is labelled is not.
    private_lag=True,
    client="writes",
)
"""What comes at the nodes of a domain, in its order: records in clear, and their labels."""

PREDICTIONS = topics.journal("predictions", ("Predictions",), EDGE_ZONE, PartitionRule.HOME, "home", client="reads")

TOPICS = (
    RECORDS,
    PREDICTIONS,
    topics.releases("releases", "GradientSum", "Seal"),
    topics.models("LinearModel"),
    topics.account("ledger", "LedgerEntry", "home"),
    topics.marks(EDGE_ZONE, "home"),
    topics.dead_letters(EDGE_ZONE, "home"),
    topics.dead_letters(SERVER_ZONE, "lines"),
)
"""All that a deployment may have."""


def topics_of(gossips: bool) -> tuple[Topic, ...]:
    """Those that a deployment has."""
    return TOPICS
