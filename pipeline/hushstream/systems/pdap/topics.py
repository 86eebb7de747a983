"""The topics of P-DAP."""

from __future__ import annotations

from hushstream.engine import topics
from hushstream.schemas.topics import OPERATOR, PUBLISHED, SHORT_MS, PartitionRule, Topic

EDGE_ZONE, COUNTER_ZONE, SERVER_ZONE = "edge", "counter", "server"
"""Whose operators may see what; the server's workers hold no key."""

OUTCOMES = Topic(
    name="outcomes",
    schemas=("Outcomes", "Seal"),
    zone=COUNTER_ZONE,
    partition_rule=PartitionRule.LINE,
    count="counter",
    retention_ms=SHORT_MS,
    # An outcome that is sent twice could be in two blocks, and would pay twice.
    noised=True,
    names_users=False,
    tombstones=False,
    ticks=False,
    private_lag=False,
)
"""Cell, arm and reward of each event, in clear, by an opaque name; for the one counter, or the home vendor's."""

FORWARDS = Topic(
    name="forwards",
    schemas=("Forwards",),
    zone=PUBLISHED,
    partition_rule=PartitionRule.LINE,
    count="vendors",
    retention_ms=SHORT_MS,
    noised=False,
    names_users=False,
    tombstones=False,
    ticks=False,
    private_lag=False,
    reader=OPERATOR,
)
"""Who was sent to whom: to the partition of the vendor whose arm was chosen, the cell and never the context."""

TOPICS = (
    topics.contexts(EDGE_ZONE, "learner"),
    topics.clicks(EDGE_ZONE, "learner"),
    topics.decisions(EDGE_ZONE, "learner"),
    OUTCOMES,
    FORWARDS,
    topics.journal("journal-counter", ("BlockJournal",), COUNTER_ZONE, PartitionRule.HOME, "counter"),
    topics.releases("releases", "BlockRelease", "Seal"),
    topics.models("TicketModel"),
    topics.account("ledger", "LedgerEntry", "scopes"),
    topics.marks(EDGE_ZONE, "learner"),
    topics.marks(COUNTER_ZONE, "counter"),
    topics.dead_letters(EDGE_ZONE, "learner"),
    topics.dead_letters(COUNTER_ZONE, "counter"),
    topics.dead_letters(SERVER_ZONE, "lines"),
)
