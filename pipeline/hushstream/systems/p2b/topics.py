"""The topics of P2B."""

from __future__ import annotations

from hushstream.engine.declare import topics
from hushstream.schemas.topics import PartitionRule, Topic

EDGE_ZONE, SHUFFLER_ZONE, SERVER_ZONE = "edge", "shuffler", "server"
"""The zones; the server's workers have no key."""

REPORTS = topics.unnamed(
    "reports",
    ("SlotReport", "FeatureSlot", "SealedFeatureSlot", "ItemRows", "Seal", "Tick"),
    SHUFFLER_ZONE,
    PartitionRule.ANY,
    "shuffler",
    noised=True,
    ticks=True,
    private_lag=False,
)

MODEL_PARTS = topics.model_parts()
"""The parts of a model that is larger than a record."""

STATEMENTS = topics.statements()
"""Signed versions of the model; only where devices take models."""

ITEMS = topics.items()
"""The catalogue, where features are declared."""

LIFT, LEDGER_EDGE = topics.account("lift", "Lift", "learner"), topics.account("ledger-edge", "LedgerEntry", "learner")
"""The releases of the learners, and a ledger of their own: no partition of a ledger may have two writers."""

TOPICS = (
    topics.contexts(EDGE_ZONE, "learner", declared=True),
    topics.clicks(EDGE_ZONE, "learner"),
    topics.decisions(EDGE_ZONE, "learner"),
    REPORTS,
    topics.journal("journal-shuffler", ("WindowJournal",), SHUFFLER_ZONE, PartitionRule.HOME, "shuffler"),
    topics.releases("window-sums", "WindowSums", "ItemSums", "ReleasePart"),
    topics.models("Model", "ItemModel", "LargeModel"),
    MODEL_PARTS,
    STATEMENTS,
    ITEMS,
    topics.account("ledger", "LedgerEntry", "scopes"),
    LIFT,
    LEDGER_EDGE,
    topics.marks(EDGE_ZONE, "learner"),
    topics.marks(SHUFFLER_ZONE, "shuffler"),
    topics.dead_letters(EDGE_ZONE, "learner"),
    topics.dead_letters(SHUFFLER_ZONE, "shuffler"),
    topics.dead_letters(SERVER_ZONE, "tracks"),
)
"""All topics that a deployment may have."""


def topics_of(lift: bool, declared: bool, in_parts: bool, devices: bool) -> tuple[Topic, ...]:
    """The topics of a deployment.

    Args:
        lift: whether it releases a lift.
        declared: whether features are declared.
        in_parts: whether models leave in parts.
        devices: whether learners are agents on devices, for which models are signed; else they are workers.
    """
    left_out = (() if lift else (LIFT, LEDGER_EDGE)) + (() if devices else (STATEMENTS,))
    left_out += (() if declared else (ITEMS,)) + (() if in_parts else (MODEL_PARTS,))
    edge = tuple(topic for topic in TOPICS if topic.zone == EDGE_ZONE) if devices else ()
    return tuple(topic for topic in TOPICS if topic not in (*left_out, *edge))
