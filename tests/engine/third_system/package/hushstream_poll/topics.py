"""The topics of a poll."""

from __future__ import annotations

from hushstream.engine.declare import topics
from hushstream.schemas.topics import OPERATOR, PUBLISHED, PartitionRule

BALLOTS, BOARD = "ballots", "board"
"""Zones: whose operators see votes, and whose see what is published alone."""

VOTES = topics.asked("votes", ("Vote", "Forget", "Tick"), BALLOTS, "ballots", ticks=True, private_lag=False)

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
