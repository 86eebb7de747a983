"""The one declaration of every topic: its records, writers, readers, zone and how it is kept.

Creation, the drift check and the access rules are made from here and from nowhere else. Names are logical; a
deployment puts its prefix before them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hushstream.schemas.catalogue import CATALOGUE
from hushstream.schemas.codec import MAX_VALUE_BYTES
from hushstream.schemas.errors import HushstreamError

MAX_MESSAGE_BYTES = MAX_VALUE_BYTES + 4096
"""Limit of a stored record batch: one largest value, and room for its key and the batch header."""

MIN_IN_SYNC = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
"""With it a broker that missed records may lead a partition: what was acknowledged is then gone, without a word."""

COMPRESSION, AS_SENT = "compression.type", "producer"
LASTING_COPIES, LASTING_IN_SYNC = 3, 2
"""Copies of each partition, and how many of them must have a record before it counts as written, with which the loss of
any one broker takes nothing that was acknowledged, and stops nobody."""

_COMPACTED: Mapping[str, str] = {"segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.1"}
"""A compacted topic is read whole at every take-up; Kafka compacts closed segments alone, rarely unless told so."""

_DAY_MS = 24 * 60 * 60 * 1000
_SHORT_MS, _LONG_MS = 7 * _DAY_MS, 90 * _DAY_MS


class Role(StrEnum):
    """Who writes or reads. The relay of slot reports is the learner worker."""

    CLIENT = "client"
    LEARNER = "learner"
    SHUFFLER = "shuffler"
    COUNTER = "counter"
    AGGREGATOR = "aggregator"
    OPERATOR = "operator"
    LETTERS_EDGE = "letters-edge"
    LETTERS_SHUFFLER = "letters-shuffler"
    LETTERS_COUNTER = "letters-counter"
    LETTERS_SERVER = "letters-server"
    """Who reads the dead letters of one zone, and nothing else: which records are refused follows from content."""


class Zone(StrEnum):
    """Who may see a topic's content in clear."""

    EDGE = "edge"
    SHUFFLER = "shuffler"
    COUNTER = "counter"
    SERVER = "server"
    PUBLISHED = "published"
    OPERATOR = "operator"


LETTER_READERS: Mapping[Zone, Role] = {
    Zone.EDGE: Role.LETTERS_EDGE,
    Zone.SHUFFLER: Role.LETTERS_SHUFFLER,
    Zone.COUNTER: Role.LETTERS_COUNTER,
    Zone.SERVER: Role.LETTERS_SERVER,
}
"""Each zone's own reader of its dead letters."""

BESIDE_THE_WORKERS = (Role.CLIENT, Role.OPERATOR, *LETTER_READERS.values())
"""Who writes or reads without running a worker of the deployment."""


class PartitionRule(StrEnum):
    """How a writer chooses the partition."""

    USER = "user"
    """`partition_of` the user; chosen by the writer, never by the broker."""
    HOME = "home"
    """The home partition of the writer, who is alone there."""
    ANY = "any"
    """Any partition: the choice says nothing of the content, and the key is null."""
    LINE = "line"
    """The number of the model line."""


class Count(StrEnum):
    """Which count of the deployment gives the number of partitions; counts are frozen with the deployment."""

    LEARNER = "learner"
    SHUFFLER = "shuffler"
    COUNTER = "counter"
    LINES = "lines"
    SCOPES = "scopes"
    """One for each home partition that releases: the scope of its ledger entries lives there."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic."""

    name: str
    schemas: tuple[str, ...]
    """Names of the records that may be on it."""
    writers: tuple[Role, ...]
    readers: tuple[Role, ...]
    zone: Zone
    partition_rule: PartitionRule
    count: Count
    retention_ms: int | None
    """None keeps everything."""
    cleanup: str = "delete"
    systems: tuple[str, ...] = ("p2b", "colin")
    """Which systems have it."""
    public_only: bool = False
    """Whether only deployments on public data have it."""
    holdout_only: bool = False
    """Whether only deployments with a hold-out have it."""
    timestamp_type: str = "LogAppendTime"
    """Log time is the broker's for every topic: a writer cannot put a record into another period."""
    max_message_bytes: int = MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        unknown = [schema for schema in self.schemas if schema not in CATALOGUE]
        if unknown or not (self.schemas and self.writers and self.readers):
            raise HushstreamError(
                f"topic {self.name}: expected known schemas, writers and readers, got unknown {unknown}"
            )

    @property
    def lasting(self) -> bool:
        """Whether it is kept for ever: what is on it cannot be made again from anything else."""
        return self.retention_ms is None

    def settings(self) -> dict[str, str]:
        """The topic's configuration in the broker's words."""
        return {
            "cleanup.policy": self.cleanup,
            "retention.ms": str(-1 if self.retention_ms is None else self.retention_ms),
            # A broker's own limit would delete what is still needed, without a word, where traffic is high.
            "retention.bytes": "-1",
            "message.timestamp.type": self.timestamp_type,
            "max.message.bytes": str(self.max_message_bytes),
            UNCLEAN_ELECTION: "false",
            **(_COMPACTED if self.cleanup == "compact" else {}),
            # As sent, and nothing is sent compressed: a null slot compresses better than a report, so that sizes on
            # disk and on the wire would tell one from the other.
            COMPRESSION: AS_SENT,
        }


def physical(prefix: str, name: str) -> str:
    """The broker's name of a topic of the deployment with this prefix.

    Raises:
        HushstreamError: there is no such topic.
    """
    if name not in TOPICS:
        raise HushstreamError(f"expected one of {', '.join(TOPICS)}, got topic {name!r}")
    return f"{prefix}{name}"


def topics_of(system: str, roles: Collection[str], public: bool, holdout: bool = False) -> tuple[str, ...]:
    """The topics that a deployment has, in the order of the declaration.

    Args:
        system: its name.
        roles: the roles that it runs; `BESIDE_THE_WORKERS` are always there.
        public: whether its data is public.
        holdout: whether some of its users are never answered by a model.
    """
    there = {*roles, *BESIDE_THE_WORKERS}
    return tuple(
        spec.name
        for spec in TOPICS.values()
        if system in spec.systems
        and there.intersection(spec.writers)
        and there.intersection(spec.readers)
        and (public or not spec.public_only)
        and (holdout or not spec.holdout_only)
    )


def _asked(name: str, *schemas: str) -> TopicSpec:
    """What applications write for the learner."""
    rule, count = PartitionRule.USER, Count.LEARNER
    return TopicSpec(name, schemas, (Role.CLIENT,), (Role.LEARNER,), Zone.EDGE, rule, count, _SHORT_MS)


def _journal(name: str, schema: str, role: Role, zone: Zone, count: Count, *readers: Role) -> TopicSpec:
    """Kept whole: its first record is the genesis, and without it no worker can start again."""
    rule = PartitionRule.HOME
    return TopicSpec(name, ("Genesis", schema), (role,), (*readers, role), zone, rule, count, None)


def _account(name: str, schema: str, writers: tuple[Role, ...], count: Count, **only: Any) -> TopicSpec:
    """Published for good. What was spent is never forgotten: a shorter ledger would let the budget be spent again."""
    rule = PartitionRule.HOME
    return TopicSpec(name, (schema,), writers, (Role.OPERATOR,), Zone.PUBLISHED, rule, count, None, **only)


def _marks(role: Role, zone: Zone, count: Count) -> TopicSpec:
    """How far a role's journals have released. The operator holds the ledger against what stands in clear of it."""
    rule, readers = PartitionRule.HOME, (role, Role.OPERATOR)
    return TopicSpec(f"marks-{zone}", ("ReleaseMark",), (role,), readers, zone, rule, count, None, cleanup="compact")


def _dead_letters(role: Role, zone: Zone, count: Count) -> TopicSpec:
    rule, name = PartitionRule.HOME, f"dead-letters-{zone}"
    return TopicSpec(name, ("DeadLetter",), (role,), (LETTER_READERS[zone],), zone, rule, count, _LONG_MS)


_HOLDOUT: Mapping[str, Any] = {"systems": ("p2b",), "holdout_only": True}

_SPECS = (
    _asked("contexts", "Context", "ContextBatch", "Seal", "Forget"),
    _asked("clicks", "Feedback", "FeedbackBatch"),
    _journal("decisions", "Decisions", Role.LEARNER, Zone.EDGE, Count.LEARNER, Role.CLIENT),
    # The shuffler writes ticks here; they move log time in an idle partition.
    TopicSpec(
        "reports",
        schemas=("SlotReport", "SealedSlot", "Seal", "Tick"),
        writers=(Role.LEARNER, Role.SHUFFLER),
        readers=(Role.SHUFFLER,),
        zone=Zone.SHUFFLER,
        partition_rule=PartitionRule.ANY,
        count=Count.SHUFFLER,
        retention_ms=_SHORT_MS,
    ),
    TopicSpec(
        "interactions",
        schemas=("Interactions", "Seal"),
        writers=(Role.LEARNER,),
        readers=(Role.AGGREGATOR,),
        zone=Zone.SERVER,
        partition_rule=PartitionRule.LINE,
        count=Count.LINES,
        retention_ms=_SHORT_MS,
        systems=("p2b",),
        public_only=True,
    ),
    # The counter writes ticks here; they move log time in an idle partition.
    TopicSpec(
        "rewards",
        systems=("colin",),
        schemas=("Rewards", "Seal", "Tick", "Erasure"),
        writers=(Role.LEARNER, Role.COUNTER),
        readers=(Role.COUNTER,),
        zone=Zone.COUNTER,
        partition_rule=PartitionRule.LINE,
        count=Count.COUNTER,
        retention_ms=_SHORT_MS,
    ),
    _journal("journal-shuffler", "WindowJournal", Role.SHUFFLER, Zone.SHUFFLER, Count.SHUFFLER),
    _journal("journal-counter", "CounterJournal", Role.COUNTER, Zone.COUNTER, Count.COUNTER),
    TopicSpec(
        "crowds",
        systems=("p2b",),
        schemas=("Crowd",),
        writers=(Role.SHUFFLER,),
        readers=(Role.AGGREGATOR, Role.OPERATOR),
        zone=Zone.PUBLISHED,
        partition_rule=PartitionRule.LINE,
        count=Count.LINES,
        retention_ms=_LONG_MS,
    ),
    # With counters at the edge it is the learner that writes releases, and seals beside them.
    TopicSpec(
        "releases",
        systems=("colin",),
        schemas=("Release", "Seal"),
        writers=(Role.COUNTER, Role.LEARNER),
        readers=(Role.AGGREGATOR, Role.OPERATOR),
        zone=Zone.PUBLISHED,
        partition_rule=PartitionRule.LINE,
        count=Count.LINES,
        retention_ms=_LONG_MS,
    ),
    TopicSpec(
        "models",
        schemas=("Genesis", "Model", "CollaborativeModel"),
        writers=(Role.AGGREGATOR,),
        readers=(Role.AGGREGATOR, Role.LEARNER, Role.OPERATOR),
        zone=Zone.PUBLISHED,
        partition_rule=PartitionRule.LINE,
        count=Count.LINES,
        retention_ms=None,
    ),
    _account("ledger", "LedgerEntry", (Role.SHUFFLER, Role.COUNTER, Role.LEARNER), Count.SCOPES),
    _account("lift", "Lift", (Role.LEARNER,), Count.LEARNER, **_HOLDOUT),
    # What learners release themselves is paid for here: no ledger partition has two writers.
    _account("ledger-edge", "LedgerEntry", (Role.LEARNER,), Count.LEARNER, **_HOLDOUT),
    _marks(Role.LEARNER, Zone.EDGE, Count.LEARNER),
    _marks(Role.SHUFFLER, Zone.SHUFFLER, Count.SHUFFLER),
    _marks(Role.COUNTER, Zone.COUNTER, Count.COUNTER),
    _dead_letters(Role.LEARNER, Zone.EDGE, Count.LEARNER),
    _dead_letters(Role.SHUFFLER, Zone.SHUFFLER, Count.SHUFFLER),
    _dead_letters(Role.COUNTER, Zone.COUNTER, Count.COUNTER),
    _dead_letters(Role.AGGREGATOR, Zone.SERVER, Count.LINES),
)

TOPICS: Mapping[str, TopicSpec] = {spec.name: spec for spec in _SPECS}
"""Every topic by its logical name."""
