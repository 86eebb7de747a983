"""The topics of collaborative bandits."""

from __future__ import annotations

from hushstream.engine import topics
from hushstream.privacy.keys import Zone
from hushstream.schemas.topics import SHORT_MS, PartitionRule, Topic

SERVER = "server"
"""The zone of the aggregator, which holds no key."""

REWARDS = Topic(
    name="rewards",
    schemas=("Rewards", "Seal", "Tick", "Erasure"),
    zone=Zone.COUNTER,
    partition_rule=PartitionRule.LINE,
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
    topics.journal("journal-counter", ("CounterJournal",), Zone.COUNTER, PartitionRule.HOME, "counter"),
    topics.marks(Zone.COUNTER, "counter"),
    topics.dead_letters(Zone.COUNTER, "counter"),
)
"""What there is where a counter is trusted."""

TOPICS = (
    topics.contexts(Zone.EDGE, "learner"),
    topics.clicks(Zone.EDGE, "learner"),
    topics.decisions(Zone.EDGE, "learner"),
    *COUNTED[:2],
    topics.releases("releases", "Release", "Seal"),
    topics.models("CollaborativeModel"),
    topics.account("ledger", "LedgerEntry", "scopes"),
    topics.marks(Zone.EDGE, "learner"),
    COUNTED[2],
    topics.dead_letters(Zone.EDGE, "learner"),
    COUNTED[3],
    topics.dead_letters(SERVER, "lines"),
)
"""All that a deployment may have."""


def topics_of(counted: bool) -> tuple[Topic, ...]:
    """Those that a deployment has, with a trusted counter or without."""
    return tuple(topic for topic in TOPICS if counted or topic not in COUNTED)
