"""What a topic is: its records, its zone, how it is kept, and what it means for privacy.

Which topics there are is for each system to say (`hushstream.engine.declare.declaration`). Creation, the drift check,
the access rules and the documents are made from those declarations and from nowhere else. Names are logical; a
deployment puts its prefix before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

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

_LARGE_SEGMENT_BYTES = 16 << 20
"""Where a publication is megabytes, and is read from its end: fewer files."""

DAY_MS = 24 * 60 * 60 * 1000

_TRIMMED: Mapping[str, str] = {"segment.bytes": str(8 << 20), "segment.ms": str(DAY_MS // 4)}
"""What is trimmed of a journal leaves the disk when its segment has been closed: within minutes where there is traffic
that fills a disk, and no more than this stays of a partition. A journal that is never trimmed has some 1,500 segments
of a partition in a year by this, and more only by its size."""

SHORT_MS, LONG_MS = 7 * DAY_MS, 90 * DAY_MS
"""How long inputs are kept, and what may have to be looked up later."""

PUBLISHED = "published"
"""The zone of what anybody may read."""

CLIENT, OPERATOR = "client", "operator"
"""Writers and readers besides the roles of a system: the application, and the operator of the deployment."""

_OF = "."


def of_party(name: str, party: str) -> str:
    """The name of what a party of a deployment has of its own: topic, role, zone or account; "" for what all share."""
    return f"{name}{_OF}{party}" if party else name


def common_name(name: str) -> str:
    """The name that systems give to what each party has of its own."""
    return name.partition(_OF)[0]


def letter_reader(zone: str) -> str:
    """Who reads the dead letters of one zone, and nothing else: which records are refused follows from content."""
    return f"letters-{zone}"


class PartitionRule(StrEnum):
    """How a writer chooses the partition."""

    USER = "user"
    """`partition_of` the user; chosen by the writer, never by the broker."""
    HOME = "home"
    """The home partition of the writer, who is alone there."""
    ANY = "any"
    """Any partition: the choice says nothing of the content, and the key is null."""
    TRACK = "track"
    """The number of the model track, or of the counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic. Its privacy attributes have no defaults, so that every declaration states them.

    Attributes:
        name: logical.
        schemas: names of the records that may be on it.
        zone: whose operator may see its content in clear; `PUBLISHED` for anybody.
        partition_rule: how a writer chooses the partition.
        count: which count of the deployment gives the number of partitions; counts are frozen with the deployment.
        retention_ms: None keeps everything.
        noised: what is on it came out of a mechanism, pays for what did, or spends an allowance: whoever writes it has
            release marks, since a journal that is rolled back would spend the same again.
        names_users: its records are of single users, so an erasure reaches it.
        tombstones: erasures are written to it, and tell an erased record from a changed one.
        ticks: readers may append a Tick when it is idle.
        private_lag: how many records it holds is content, so a worker's lag on it is zone-private.
        client: what applications do with it, if anything; who changes it writes it, and reads it again.
        reader: who reads it beside the roles and applications: the operator, or whoever is named for it alone.
        each: whether each party of a deployment has one of its own (`hushstream.engine.declare.parties`).
        party: whose it is; "" where all parties share it, or there are none.
        cleanup: the broker's cleanup policy.
        timestamp_type: log time is the broker's for every topic: a writer cannot put a record into another period.
        max_message_bytes: limit of a stored batch.
        replaced_ms: within which time the broker compacts away what a newer record of its key has replaced; None
            leaves that to the broker.
    """

    name: str
    schemas: tuple[str, ...]
    zone: str
    partition_rule: PartitionRule
    count: str
    retention_ms: int | None
    noised: bool
    names_users: bool
    tombstones: bool
    ticks: bool
    private_lag: bool
    client: Literal["writes", "reads", "changes"] | None = None
    reader: str | None = None
    each: bool = False
    party: str = ""
    cleanup: str = "delete"
    timestamp_type: str = "LogAppendTime"
    max_message_bytes: int = MAX_MESSAGE_BYTES
    replaced_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse records that nobody could encode."""
        unknown = [schema for schema in self.schemas if schema not in CATALOGUE]
        if unknown or not self.schemas:
            raise HushstreamError(f"topic {self.name}: expected known schemas, got unknown {unknown}")

    @property
    def application(self) -> str:
        """Whose account applications use here."""
        return of_party(CLIENT, self.party)

    @property
    def lasting(self) -> bool:
        """Whether it is kept for ever: what is on it cannot be made again from anything else."""
        return self.retention_ms is None

    @property
    def is_journal(self) -> bool:
        """Whether one role alone writes it, ahead of all else."""
        return "Genesis" in self.schemas

    @property
    def holds_dead_letters(self) -> bool:
        """Whether refused records are named on it."""
        return self.schemas == ("DeadLetter",)

    @property
    def holds_state(self) -> bool:
        """Whether what a role has in memory is published on it, sealed to its zone."""
        return self.schemas == ("StatePart",)

    @property
    def is_ledger(self) -> bool:
        """Whether what was paid is entered on it."""
        return self.schemas == ("LedgerEntry",)

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
            **(_COMPACTED if self.cleanup == "compact" else _TRIMMED if self.is_journal else {}),
            **self._replaced_settings(),
            # As sent, and nothing is sent compressed: a null slot compresses better than a report, so that sizes on
            # disk and on the wire would tell one from the other.
            COMPRESSION: AS_SENT,
        }

    def _replaced_settings(self) -> dict[str, str]:
        if self.replaced_ms is None:
            return {}
        return {"segment.bytes": str(_LARGE_SEGMENT_BYTES), "max.compaction.lag.ms": str(self.replaced_ms)}


def physical(prefix: str, name: str) -> str:
    """The broker's name of a topic of the deployment with this prefix."""
    return f"{prefix}{name}"
