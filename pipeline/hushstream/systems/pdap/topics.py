"""The topics of P-DAP. Each vendor has its own topics in the edge zone, and no other vendor can read them.

With `placement: home` a vendor also has the counter's topics of its own; with `serving` there is one trusted counter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hushstream.engine.declare import topics
from hushstream.schemas.topics import SHORT_MS, PartitionRule, Topic

EDGE_ZONE, COUNTER_ZONE, SERVER_ZONE = "edge", "counter", "server"
"""The zones; the server's workers have no key."""

OUTCOMES = topics.unnamed(
    "outcomes",
    ("Outcomes", "ArmChange", "Seal", "Tick"),
    COUNTER_ZONE,
    PartitionRule.TRACK,
    "counter",
    # An outcome that is sent twice could get into two blocks, and would cost its price twice.
    noised=True,
    ticks=True,
    private_lag=False,
)
"""Cell, arm and reward of each event, in clear, by an opaque name; for the one counter, or the home vendor's own."""

FORWARDS = topics.published("forwards", "Forwards", kept_ms=SHORT_MS, noised=False, client="reads", each=True)
"""Forwards that a vendor reads: which of its arms was shown, and in which cell; never the context."""

ITEMS = replace(topics.items(), each=True)
"""The topic of items by name; each vendor has its own, which no other one changes."""

TOPICS = (
    topics.contexts(EDGE_ZONE, "learner", each=True, declared=True),
    topics.clicks(EDGE_ZONE, "learner", each=True),
    topics.decisions(EDGE_ZONE, "learner", each=True),
    OUTCOMES,
    FORWARDS,
    topics.journal("journal-counter", ("BlockJournal",), COUNTER_ZONE, PartitionRule.HOME, "counter"),
    topics.releases("releases", "BlockRelease", "ArmChange", "Seal"),
    topics.models("TicketModel"),
    ITEMS,
    topics.account("ledger", "LedgerEntry", "scopes"),
    topics.marks(EDGE_ZONE, "learner", each=True),
    topics.marks(COUNTER_ZONE, "counter"),
    topics.dead_letters(EDGE_ZONE, "learner", each=True),
    topics.dead_letters(COUNTER_ZONE, "counter"),
    topics.dead_letters(SERVER_ZONE, "tracks"),
)
"""All topics that a deployment may have."""

_COUNTERS_OWN = ("outcomes", "journal-counter", "ledger", "marks-counter", "dead-letters-counter")


def declared(home: bool, named: bool) -> Iterable[Topic]:
    """The topics of a deployment: with one counter for each vendor or one for all, with or without named items."""
    for topic in TOPICS:
        if named or topic is not ITEMS:
            yield replace(topic, each=True) if home and topic.name in _COUNTERS_OWN else topic
