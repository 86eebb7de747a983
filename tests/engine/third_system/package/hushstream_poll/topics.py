"""The topics of a poll."""

from __future__ import annotations

from hushstream.engine.declare import topics
from hushstream.schemas.topics import OPERATOR, PUBLISHED, SHORT_MS, PartitionRule, Topic

BALLOTS, BOARD = "ballots", "board"
"""Zones: whose operators see votes, and whose see what is published alone."""

VOTES = Topic(
    name="votes",
    schemas=("Vote", "Forget", "Tick"),
    zone=BALLOTS,
    partition_rule=PartitionRule.USER,
    count="ballots",
    retention_ms=SHORT_MS,
    noised=False,
    names_users=True,
    deletions=True,
    ticks=True,
    private_lag=False,
    client="writes",
)

TOPICS = (
    VOTES,
    topics.journal("journal-ballots", ("TallyJournal",), BALLOTS, PartitionRule.HOME, "ballots"),
    topics.releases("tallies", "Tally"),
    topics.account("spent-on-votes", "LedgerEntry", "ballots"),
    topics.journal(
        "standings", ("Standing",), PUBLISHED, PartitionRule.TRACK, "tracks", client="reads", reader=OPERATOR
    ),
    topics.marks(BALLOTS, "ballots"),
    topics.dead_letters(BALLOTS, "ballots"),
    topics.dead_letters(BOARD, "tracks"),
)
