"""The topics of P2B."""

from __future__ import annotations

from hushstream.engine import topics
from hushstream.privacy.keys import Zone
from hushstream.schemas.topics import SHORT_MS, PartitionRule, Topic

SERVER = "server"
"""The zone of the aggregator, which holds no key."""

REPORTS = Topic(
    name="reports",
    schemas=("SlotReport", "SealedSlot", "Seal", "Tick"),
    zone=Zone.SHUFFLER,
    partition_rule=PartitionRule.ANY,
    count="shuffler",
    retention_ms=SHORT_MS,
    noised=True,
    names_users=False,
    tombstones=False,
    ticks=True,
    private_lag=False,
)

INTERACTIONS = Topic(
    name="interactions",
    schemas=("Interactions", "Seal"),
    zone=SERVER,
    partition_rule=PartitionRule.LINE,
    count="lines",
    retention_ms=SHORT_MS,
    noised=False,
    names_users=False,
    tombstones=False,
    ticks=False,
    private_lag=True,
)
"""Interactions in clear, for the non-private line: there are some where the data is public, and nowhere else."""

LIFT, LEDGER_EDGE = topics.account("lift", "Lift", "learner"), topics.account("ledger-edge", "LedgerEntry", "learner")
"""What learners release themselves, and what it costs: no partition of the ledger has two writers."""

TOPICS = (
    topics.contexts(Zone.EDGE, "learner"),
    topics.clicks(Zone.EDGE, "learner"),
    topics.decisions(Zone.EDGE, "learner"),
    REPORTS,
    INTERACTIONS,
    topics.journal("journal-shuffler", ("WindowJournal",), Zone.SHUFFLER, PartitionRule.HOME, "shuffler"),
    topics.releases("crowds", "Crowd"),
    topics.models("Model"),
    topics.account("ledger", "LedgerEntry", "scopes"),
    LIFT,
    LEDGER_EDGE,
    topics.marks(Zone.EDGE, "learner"),
    topics.marks(Zone.SHUFFLER, "shuffler"),
    topics.dead_letters(Zone.EDGE, "learner"),
    topics.dead_letters(Zone.SHUFFLER, "shuffler"),
    topics.dead_letters(SERVER, "lines"),
)
"""All that a deployment may have."""


def topics_of(public: bool, holdout: bool, hosted: bool) -> tuple[Topic, ...]:
    """Those that a deployment has: on public data, with a hold-out, or with learner workers, some more."""
    left_out = (() if public else (INTERACTIONS,)) + (() if holdout else (LIFT, LEDGER_EDGE))
    edge = () if hosted else tuple(topic for topic in TOPICS if topic.zone == Zone.EDGE)
    return tuple(topic for topic in TOPICS if topic not in (*left_out, *edge))
