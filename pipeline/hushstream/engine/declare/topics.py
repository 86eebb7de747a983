"""Topics that more than one system has, in the form that they share; each system lists its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

from hushstream.engine.catalogue import ITEMS
from hushstream.engine.records import MODEL_PARTS, PART
from hushstream.privacy.promises.contents import Content, Form
from hushstream.schemas.topics import (
    DAY_MS,
    LONG_MS,
    OPERATOR,
    PUBLISHED,
    SHORT_MS,
    PartitionRule,
    Topic,
    letter_reader,
)

STATEMENTS = "statements"

_PLAIN: dict[str, Any] = {
    "noised": False,
    "names_users": False,
    "tombstones": False,
    "ticks": False,
    "private_lag": False,
}
"""Of a topic that holds no noise and names nobody."""

EVENTS_STAY = "event ids in the decisions journal, which names no user; an event id should not name one either"
"""What an erasure leaves of a user wherever there are `decisions`."""


def contents_on(topics: Iterable[Topic], trusted: Set[str]) -> Callable[[str, str, Form], Content]:
    """What a guarantee says of a topic's content, from its name, the content in words, and the form of that.

    Args:
        topics: of the system; who may read a topic follows from its declaration.
        trusted: zones that the guarantee trusts with content.
    """
    zones = {topic.name: topic.zone for topic in topics}

    def content(topic: str, what: str, form: Form) -> Content:
        return Content(topic, what, form, zones[topic], zones[topic] in trusted)

    return content


def asked(
    name: str,
    schemas: tuple[str, ...],
    zone: str,
    count: str,
    *,
    ticks: bool,
    private_lag: bool,
    rule: PartitionRule = PartitionRule.USER,
    each: bool = False,
) -> Topic:
    """What applications write of their users, in clear, until a tombstone erases it."""
    return Topic(
        name=name,
        schemas=schemas,
        zone=zone,
        partition_rule=rule,
        count=count,
        retention_ms=SHORT_MS,
        noised=False,
        names_users=True,
        tombstones=True,
        ticks=ticks,
        private_lag=private_lag,
        client="writes",
        each=each,
    )


def unnamed(
    name: str,
    schemas: tuple[str, ...],
    zone: str,
    rule: PartitionRule,
    count: str,
    *,
    noised: bool,
    ticks: bool,
    private_lag: bool,
) -> Topic:
    """What one role hands to the next in clear and without a user's name: slots, outcomes, interactions."""
    flags = {**_PLAIN, "noised": noised, "ticks": ticks, "private_lag": private_lag}
    return Topic(
        name=name, schemas=schemas, zone=zone, partition_rule=rule, count=count, retention_ms=SHORT_MS, **flags
    )


def contexts(zone: str, count: str, each: bool = False, declared: bool = False) -> Topic:
    """What applications ask: contexts (also of ``declared`` features), ends of phases, and tombstones of users."""
    features = ("FeatureContext", "FeatureContextBatch") if declared else ()
    schemas = ("Context", "ContextBatch", *features, "Seal", "Forget")
    return asked("contexts", schemas, zone, count, ticks=False, private_lag=False, each=each)


def clicks(zone: str, count: str, each: bool = False) -> Topic:
    """What applications saw: shown arms, and rewards. How many there are is content."""
    return Topic(
        name="clicks",
        schemas=("Feedback", "FeedbackBatch"),
        zone=zone,
        partition_rule=PartitionRule.USER,
        count=count,
        retention_ms=SHORT_MS,
        noised=False,
        names_users=True,
        tombstones=False,
        ticks=False,
        private_lag=True,
        client="writes",
        each=each,
    )


def journal(name: str, schemas: tuple[str, ...], zone: str, rule: PartitionRule, count: str, **more: Any) -> Topic:
    """Without retention: its beginning may be deleted up to a published state alone (`hushstream.ops.trim`)."""
    everything = ("Genesis", *schemas, "OperatorNote")
    return Topic(
        name=name,
        schemas=everything,
        zone=zone,
        partition_rule=rule,
        count=count,
        retention_ms=None,
        **_PLAIN,
        **more,
    )


def decisions(zone: str, count: str, each: bool = False) -> Topic:
    """What was answered: the journal of those who decide."""
    return journal("decisions", ("Decisions",), zone, PartitionRule.HOME, count, client="reads", each=each)


def models(*schemas: str) -> Topic:
    """Versions of a model: the journal of those who publish it."""
    return journal("models", schemas, PUBLISHED, PartitionRule.TRACK, "tracks", reader=OPERATOR)


def model_parts() -> Topic:
    """Arrays of models that are larger than a record. A new version is whole without those before it."""
    return Topic(
        name=MODEL_PARTS,
        schemas=(PART,),
        zone=PUBLISHED,
        partition_rule=PartitionRule.TRACK,
        count="tracks",
        retention_ms=LONG_MS,
        reader=OPERATOR,
        **_PLAIN,
    )


def statements() -> Topic:
    """Models as devices take them, under a signature: where learners are agents on devices."""
    return Topic(
        name=STATEMENTS,
        schemas=("ModelStatement",),
        zone=PUBLISHED,
        partition_rule=PartitionRule.TRACK,
        count="tracks",
        retention_ms=LONG_MS,
        reader=OPERATOR,
        **_PLAIN,
    )


def items() -> Topic:
    """Changes of the catalogue. Nothing deletes from it: what a row stood for follows from all of them."""
    return Topic(
        name=ITEMS,
        schemas=("Item",),
        zone=PUBLISHED,
        partition_rule=PartitionRule.TRACK,
        count="tracks",
        retention_ms=None,
        client="changes",
        reader=OPERATOR,
        **_PLAIN,
    )


def account(name: str, schema: str, count: str) -> Topic:
    """Published for good. What was spent is never forgotten: a shorter ledger would let the budget be spent again."""
    return Topic(
        name=name,
        schemas=(schema,),
        zone=PUBLISHED,
        partition_rule=PartitionRule.HOME,
        count=count,
        retention_ms=None,
        reader=OPERATOR,
        **{**_PLAIN, "noised": True},
    )


def releases(name: str, *schemas: str) -> Topic:
    """What came out of a mechanism."""
    return Topic(
        name=name,
        schemas=schemas,
        zone=PUBLISHED,
        partition_rule=PartitionRule.TRACK,
        count="tracks",
        retention_ms=LONG_MS,
        reader=OPERATOR,
        **{**_PLAIN, "noised": True},
    )


def marks(zone: str, count: str, each: bool = False) -> Topic:
    """How far a role's journals have released. The operator holds the ledger against what stands in clear of it."""
    return Topic(
        name=f"marks-{zone}",
        schemas=("ReleaseMark",),
        zone=zone,
        partition_rule=PartitionRule.HOME,
        count=count,
        retention_ms=None,
        reader=OPERATOR,
        cleanup="compact",
        each=each,
        **_PLAIN,
    )


def state(role: str, zone: str, count: str, each: bool = False, party: str = "") -> Topic:
    """What a role has in memory, sealed to its zone, for whoever owns the partition next.

    Nobody is named on it: an erased user is gone with the states that replace those which still held the user's.
    """
    return Topic(
        name=f"state-{role}",
        schemas=("StatePart",),
        zone=zone,
        partition_rule=PartitionRule.HOME,
        count=count,
        retention_ms=None,
        cleanup="compact",
        replaced_ms=DAY_MS,
        each=each,
        party=party,
        **_PLAIN,
    )


def dead_letters(zone: str, count: str, each: bool = False) -> Topic:
    """Which records a zone refused, for its own operator."""
    return Topic(
        name=f"dead-letters-{zone}",
        schemas=("DeadLetter",),
        zone=zone,
        partition_rule=PartitionRule.HOME,
        count=count,
        retention_ms=LONG_MS,
        reader=letter_reader(zone),
        each=each,
        **_PLAIN,
    )
