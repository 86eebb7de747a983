"""Topics that more than one system has, in the form that they share; each system lists its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

from hushstream.engine.catalogue import ITEMS
from hushstream.engine.records import MODEL_PARTS, PART
from hushstream.privacy.promises.promise import Content, Form
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
    "deletions": False,
    "ticks": False,
    "private_lag": False,
}
"""Declaration of a topic without noise and without names of users."""

EVENTS_STAY = "event ids in the decisions journal, which names no user; an event id should not name one either"
"""What an erasure leaves of a user in every system with `decisions`."""


def contents_on(topics: Iterable[Topic], trusted: Set[str]) -> Callable[[str, str, Form], Content]:
    """What a guarantee says about a topic, from its name, its content in words, and the form of the content.

    Args:
        topics: topics of the system; their declarations say who may read them.
        trusted: zones that the guarantee trusts with content.
    """
    declared = {topic.name: topic for topic in topics}

    def content(topic: str, what: str, form: Form) -> Content:
        found = declared[topic]
        days = None if found.retention_ms is None else found.retention_ms // DAY_MS
        return Content(topic, what, form, found.zone, found.zone in trusted, days)

    return content


def requests(
    name: str,
    schemas: tuple[str, ...],
    zone: str,
    count: str,
    *,
    ticks: bool,
    private_lag: bool,
    deletions: bool = True,
    rule: PartitionRule = PartitionRule.USER,
    each: bool = False,
) -> Topic:
    """A topic that applications write about their users, in clear; a deletion request erases a user there."""
    return Topic(
        name=name,
        schemas=schemas,
        zone=zone,
        partition_rule=rule,
        count=count,
        retention_ms=SHORT_MS,
        noised=False,
        names_users=True,
        deletions=deletions,
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
    """A topic from one role to the next, in clear and without users' names: slots, outcomes or interactions."""
    flags = {**_PLAIN, "noised": noised, "ticks": ticks, "private_lag": private_lag}
    return Topic(
        name=name, schemas=schemas, zone=zone, partition_rule=rule, count=count, retention_ms=SHORT_MS, **flags
    )


def contexts(zone: str, count: str, each: bool = False, declared: bool = False) -> Topic:
    """The requests of applications: contexts (also of ``declared`` features), phase ends, and deletion requests."""
    features = ("FeatureContext", "FeatureContextBatch") if declared else ()
    schemas = ("Context", "ContextBatch", *features, "Seal", "Forget")
    return requests("contexts", schemas, zone, count, ticks=False, private_lag=False, each=each)


def clicks(zone: str, count: str, each: bool = False) -> Topic:
    """The feedback of applications: shown arms, and rewards. Their number depends on content."""
    schemas = ("Feedback", "FeedbackBatch")
    return requests("clicks", schemas, zone, count, ticks=False, private_lag=True, deletions=False, each=each)


def journal(name: str, schemas: tuple[str, ...], zone: str, rule: PartitionRule, count: str, **more: Any) -> Topic:
    """A journal.

    Retention never deletes from it; `hushstream.ops.logs.trim` may delete what lies before a published state.
    """
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
    """The answers: the journal of roles that decide."""
    return journal("decisions", ("Decisions",), zone, PartitionRule.HOME, count, client="reads", each=each)


def models(*schemas: str) -> Topic:
    """Versions of a model: the journal of the role that publishes it."""
    return journal("models", schemas, PUBLISHED, PartitionRule.TRACK, "tracks", reader=OPERATOR)


def published(
    name: str,
    *schemas: str,
    kept_ms: int | None,
    noised: bool,
    rule: PartitionRule = PartitionRule.TRACK,
    count: str = "tracks",
    **more: Any,
) -> Topic:
    """A topic that everybody may read and that no user's name is on; the operator compares it with other topics."""
    flags = {**_PLAIN, "noised": noised}
    return Topic(
        name=name,
        schemas=schemas,
        zone=PUBLISHED,
        partition_rule=rule,
        count=count,
        retention_ms=kept_ms,
        reader=OPERATOR,
        **flags,
        **more,
    )


def model_parts() -> Topic:
    """Arrays of models that are larger than a record. Each version is complete by itself."""
    return published(MODEL_PARTS, PART, kept_ms=LONG_MS, noised=False)


def statements() -> Topic:
    """Models as devices take them, under a signature: where learners are agents on devices."""
    return published(STATEMENTS, "ModelStatement", kept_ms=LONG_MS, noised=False)


def items() -> Topic:
    """Changes of the catalogue. Nothing is deleted from it, because the item of a row follows from all changes."""
    return published(ITEMS, "ItemChanges", kept_ms=None, noised=False, client="changes")


def account(name: str, schema: str, count: str) -> Topic:
    """A ledger, published for ever.

    Nothing is deleted from it: a shorter ledger would let the budget be spent again.
    """
    return published(name, schema, kept_ms=None, noised=True, rule=PartitionRule.HOME, count=count)


def releases(name: str, *schemas: str) -> Topic:
    """The outputs of a mechanism."""
    return published(name, *schemas, kept_ms=LONG_MS, noised=True)


def _of_homes(name: str, schema: str, zone: str, count: str, kept_ms: int | None, **more: Any) -> Topic:
    """A topic that the workers of a zone write beside their journals; no user's name is on it."""
    return Topic(
        name=name,
        schemas=(schema,),
        zone=zone,
        partition_rule=PartitionRule.HOME,
        count=count,
        retention_ms=kept_ms,
        **_PLAIN,
        **more,
    )


def marks(zone: str, count: str, each: bool = False) -> Topic:
    """Release marks of a role's journals. The operator compares the ledger with their public part."""
    return _of_homes(f"marks-{zone}", "ReleaseMark", zone, count, None, cleanup="compact", reader=OPERATOR, each=each)


def state(role: str, zone: str, count: str, each: bool = False, party: str = "") -> Topic:
    """The states of a role, sealed to its zone, for the next owner of each partition.

    It names no user. An erased user's data are gone when newer states have replaced the older ones.
    """
    kept: dict[str, Any] = {"cleanup": "compact", "replaced_ms": DAY_MS}
    return _of_homes(f"state-{role}", "StatePart", zone, count, None, each=each, party=party, **kept)


def dead_letters(zone: str, count: str, each: bool = False) -> Topic:
    """The records that a zone refused, for its own operator."""
    reader = letter_reader(zone)
    return _of_homes(f"dead-letters-{zone}", "DeadLetter", zone, count, LONG_MS, reader=reader, each=each)
