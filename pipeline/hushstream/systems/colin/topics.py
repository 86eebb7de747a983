"""The topics of collaborative bandits."""

from __future__ import annotations

from hushstream.engine.declare import topics
from hushstream.schemas.topics import SHORT_MS, PartitionRule, Topic

EDGE_ZONE, COUNTER_ZONE, SERVER_ZONE = "edge", "counter", "server"
"""The zones; the server's workers have no key."""

REWARDS = Topic(
    name="rewards",
    schemas=("Rewards", "Seal", "Tick", "Erasure"),
    zone=COUNTER_ZONE,
    partition_rule=PartitionRule.TRACK,
    count="counter",
    retention_ms=SHORT_MS,
    noised=False,
    names_users=True,
    tombstones=True,
    ticks=True,
    private_lag=False,
)
"""Rows in clear, by the numbers of their users in the graph."""

COUNTED = (
    REWARDS,
    topics.journal("journal-counter", ("CounterJournal",), COUNTER_ZONE, PartitionRule.HOME, "counter"),
    topics.marks(COUNTER_ZONE, "counter"),
    topics.dead_letters(COUNTER_ZONE, "counter"),
)
"""Topics with a trusted counter."""

ITEMS = topics.items()
"""Topic of items by name."""

TOPICS = (
    topics.contexts(EDGE_ZONE, "learner"),
    topics.clicks(EDGE_ZONE, "learner"),
    topics.decisions(EDGE_ZONE, "learner"),
    *COUNTED[:2],
    topics.releases("releases", "Release", "Seal"),
    topics.models("CollaborativeModel"),
    ITEMS,
    topics.account("ledger", "LedgerEntry", "scopes"),
    topics.marks(EDGE_ZONE, "learner"),
    COUNTED[2],
    topics.dead_letters(EDGE_ZONE, "learner"),
    COUNTED[3],
    topics.dead_letters(SERVER_ZONE, "tracks"),
)
"""All topics that a deployment may have."""


def topics_of(counted: bool, named: bool) -> tuple[Topic, ...]:
    """The topics of a deployment, with or without a trusted counter, and with or without items by name."""
    left_out = (() if counted else COUNTED) + (() if named else (ITEMS,))
    return tuple(topic for topic in TOPICS if topic not in left_out)
