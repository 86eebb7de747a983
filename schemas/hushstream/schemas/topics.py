"""The declaration of a topic: its records, its zone, its retention, and its role for privacy.

Each system declares its topics (`hushstream.engine.declare.declaration`). Topics are created and checked for drift by
these declarations alone, and the access rules and documents are made from them. Names are logical: a deployment puts
its prefix before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Literal

from hushstream.schemas.catalogue import CATALOGUE
from hushstream.schemas.codec import MAX_VALUE_BYTES
from hushstream.schemas.errors import HushstreamError


def partition_of(user: str, partitions: int) -> int:
    """The partition of a user: BLAKE2b-64 of their UTF-8 name, as a little-endian integer, modulo the count.

    The rule is part of the format: it needs no state and is the same in every process and language. Another number of
    partitions makes another deployment.

    Raises:
        HushstreamError: the count is not positive.
    """
    if partitions < 1:
        raise HushstreamError(f"expected at least one partition, got {partitions}")
    if partitions == 1:
        return 0
    # A name that is no valid UTF-8 still has a partition, because the codec refuses it.
    digest = blake2b(user.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % partitions


MAX_MESSAGE_BYTES = MAX_VALUE_BYTES + 4096
"""Limit of a stored record batch: one largest value, and room for its key and the batch header."""

MIN_IN_SYNC, LOG_TIME = "min.insync.replicas", "message.timestamp.type"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
"""With this setting a broker that lacks records may become leader of a partition. Acknowledged records are then lost
silently."""

COMPRESSION, AS_SENT = "compression.type", "producer"
LASTING_COPIES, LASTING_IN_SYNC = 3, 2
"""Number of copies of each partition, and number of copies that must have a record before it is acknowledged. With
these numbers the loss of any one broker loses no acknowledged record, and stops no writer."""

_COMPACTED: Mapping[str, str] = {"segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.1"}
"""Settings for frequent compaction, because a compacted topic is read completely at every take-up. Kafka compacts
closed segments only, and by default rarely."""

_LARGE_SEGMENT_BYTES = 16 << 20
"""Segment size of topics whose publications have megabytes and are read from the end, so that there are fewer files."""

DAY_MS = 24 * 60 * 60 * 1000

_TRIMMED: Mapping[str, str] = {"segment.bytes": str(8 << 20), "segment.ms": str(DAY_MS // 4)}
"""Segments of journals are closed after this size or time, because trimmed records leave the disk only when their
segment is closed. With traffic that fills a disk this takes minutes, and a partition keeps at most one such segment. A
journal that is never trimmed has some 1,500 segments for each partition after a year by the time limit, and more only
by its size."""

SHORT_MS, LONG_MS = 7 * DAY_MS, 90 * DAY_MS
"""Retention of inputs, and of records that may have to be looked up later."""

PUBLISHED = "published"
"""The zone of topics that anybody may read."""

CLIENT, OPERATOR = "client", "operator"
"""Writers and readers besides the roles of a system: the application, and the operator of the deployment."""

_OF = "."


def of_party(name: str, party: str) -> str:
    """The name of a topic, role, zone or account that belongs to a party; the party is "" if all parties share it."""
    return f"{name}{_OF}{party}" if party else name


def common_name(name: str) -> str:
    """The name of a topic, role, zone or account without its party, as systems declare it."""
    return name.partition(_OF)[0]


def letter_reader(zone: str) -> str:
    """The account that reads the dead letters of one zone alone. It is separate, because refusals depend on content."""
    return f"letters-{zone}"


class PartitionRule(StrEnum):
    """How a writer chooses the partition."""

    USER = "user"
    """`partition_of` the user; the writer chooses it, never the broker."""
    HOME = "home"
    """The home partition of the writer; nobody else writes it."""
    ANY = "any"
    """Any partition: the choice does not depend on the content, and the key is null."""
    TRACK = "track"
    """The number of the model track, or of the counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic. Its privacy attributes have no defaults, so that every declaration states them.

    Attributes:
        name: logical.
        schemas: names of the schemas of its records.
        zone: the zone whose operator may read its content in clear; `PUBLISHED` for anybody.
        partition_rule: how a writer chooses the partition.
        count: the deployment's count that is its number of partitions; counts are frozen with the deployment.
        retention_ms: time for which records are kept; None: for ever.
        noised: whether its records are outputs of a mechanism, pay for such outputs, or spend an allowance. Then its
            writer has release marks, because a journal that is rolled back would spend the same again.
        names_users: whether its records are about single users; then an erasure reaches it.
        deletions: whether erasures are written to it. They show that a record was erased, and not changed.
        ticks: whether readers may append a Tick when it is idle.
        private_lag: whether its number of records depends on content; then a worker's lag on it is zone-private.
        client: what applications do with it, if anything. An application that changes it may write and read it.
        reader: who reads it besides roles and applications: the operator, or an account for this topic alone.
        each: whether each party of a deployment has one of its own (`hushstream.engine.declare.role`).
        party: its party; "" if all parties share it, or there are none.
        cleanup: the broker's cleanup policy.
        timestamp_type: the kind of log time. Every topic has the broker's, so a writer cannot move a record to another
            period.
        max_message_bytes: largest size of a stored batch.
        replaced_ms: time after which the broker must have compacted away records that a newer record of their key has
            replaced; None: the broker decides.
    """

    name: str
    schemas: tuple[str, ...]
    zone: str
    partition_rule: PartitionRule
    count: str
    retention_ms: int | None
    noised: bool
    names_users: bool
    deletions: bool
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
        """The account that applications use for this topic."""
        return of_party(CLIENT, self.party)

    @property
    def lasting(self) -> bool:
        """Whether it is kept for ever, because its records cannot be recomputed from others."""
        return self.retention_ms is None

    @property
    def is_journal(self) -> bool:
        """Whether it is a journal: one role alone writes it, before all other outputs."""
        return "Genesis" in self.schemas

    @property
    def holds_dead_letters(self) -> bool:
        """Whether it holds dead letters."""
        return self.schemas == ("DeadLetter",)

    @property
    def holds_state(self) -> bool:
        """Whether it holds the published states of a role, sealed to its zone."""
        return self.schemas == ("StatePart",)

    @property
    def is_ledger(self) -> bool:
        """Whether it holds the entries of a ledger."""
        return self.schemas == ("LedgerEntry",)

    def settings(self) -> dict[str, str]:
        """The topic's configuration, with the broker's names and values."""
        return {
            "cleanup.policy": self.cleanup,
            "retention.ms": str(-1 if self.retention_ms is None else self.retention_ms),
            # With high traffic, a size limit of the broker would silently delete records that are still needed.
            "retention.bytes": "-1",
            LOG_TIME: self.timestamp_type,
            "max.message.bytes": str(self.max_message_bytes),
            UNCLEAN_ELECTION: "false",
            **(_COMPACTED if self.cleanup == "compact" else _TRIMMED if self.is_journal else {}),
            **self._replaced_settings(),
            # Batches are stored as they were sent, and nothing is sent compressed. A null slot compresses better than a
            # report, so compressed sizes on disk and on the wire would reveal which slots are null.
            COMPRESSION: AS_SENT,
        }

    def _replaced_settings(self) -> dict[str, str]:
        if self.replaced_ms is None:
            return {}
        return {"segment.bytes": str(_LARGE_SEGMENT_BYTES), "max.compaction.lag.ms": str(self.replaced_ms)}


def physical(prefix: str, name: str) -> str:
    """The broker's name of a topic of the deployment with this prefix."""
    return f"{prefix}{name}"
