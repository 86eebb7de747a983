"""Checks, before a worker joins its group, that a broker answers, topics are as declared, and its rights suffice."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from hushstream.agents.errors import (
    DENIED,
    AccessDenied,
    BrokerUnreachable,
    PartitionCountWrong,
    TopicMissing,
    TopicSettingsWrong,
)
from hushstream.agents.kafka.administration import (
    DESCRIBE_CONFIGS,
    READ,
    RIGHTS_FIX,
    WRITE,
    administering,
    check_rights,
    check_version,
    missing_rights,
    moved,
    why_unreachable,
)
from hushstream.agents.kafka.logs import partition_counts
from hushstream.agents.settings import WorkerSettings
from hushstream.privacy.amounts import count_text
from hushstream.schemas.topics import (
    COMPRESSION,
    LASTING_COPIES,
    LASTING_IN_SYNC,
    LOG_TIME,
    MIN_IN_SYNC,
    UNCLEAN_ELECTION,
    Topic,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS = 0.3
_RETENTION = ("retention.ms", "retention.bytes")
_SAME = ("cleanup.policy", UNCLEAN_ELECTION, COMPRESSION)
_AT_LEAST = (*_RETENTION, "max.message.bytes")
_IMPORT_AGAIN = "if an import of the topics ended half-way, run it again"
PARTITIONS, RIGHTS = "partitions", "rights"
"""What may differ of a topic beside its settings."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a topic and its declaration.

    Attributes:
        topic, name: the topic's logical name, and its name on the broker.
        what: ``topic`` (the topic is missing), ``partitions``, ``rights``, or the name of a setting.
        expected, found: both values.
    """

    topic: str
    name: str
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        """One line, which ends with the command that removes the difference."""
        return f"topic {self.name}: expected {self.what} {self.expected}, found {self.found}; {self._remedy()}"

    def _remedy(self) -> str:
        if self.what == "topic":
            return "`hushstream topics apply` creates it"
        if self.what == RIGHTS:
            return RIGHTS_FIX
        if self.what == PARTITIONS:
            return f"`hushstream logs repair partitions {self.topic} --write` makes it again with its records"
        wanted = self.expected.partition(" ")[0]
        return (
            f"set it with Kafka's own `kafka-configs.sh --bootstrap-server HOST:PORT --alter --topic {self.name} "
            f"--add-config {self.what}={wanted}` (and --command-config with an administrator's account, if it asks)"
        )


@dataclass(frozen=True, slots=True)
class RoleTopics:
    """The topics of a role, by logical name. They are known without a machine, so no key is needed.

    Attributes:
        inputs: the co-partitioned inputs; the first one is the home topic.
        journal: the topic that the role writes before everything else.
        writes: all topics that the role writes, without its journal.
        broadcasts: the topics that each machine reads in full, besides its inputs.
        partitions: how many partitions the inputs must have; None accepts any number.
        declared: the declaration of each topic, by name.
        marks: the topic of its release marks; None for a role that adds no noise and spends no allowance.
        state: the topic of its published states; None if it has none.
        counts: the declared number of partitions of each topic that it uses.
        computed: those of its topics that `hushstream.ops.logs.remake` computes again: journals of published models.
        evidence: those of ``writes`` that leave the zone and that no other role writes. They are evidence of earlier
            releases: when a new journal begins they must be empty.
    """

    inputs: tuple[str, ...]
    journal: str
    writes: tuple[str, ...] = ()
    broadcasts: tuple[str, ...] = ()
    partitions: int | None = None
    declared: Mapping[str, Topic] = field(default_factory=dict)
    marks: str | None = None
    evidence: tuple[str, ...] = ()
    state: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    computed: frozenset[str] = frozenset()

    @property
    def own(self) -> tuple[str, ...]:
        """The topics that the role writes for itself and reads again, with one partition for each home partition."""
        return tuple(name for name in (self.journal, self.marks, self.state) if name is not None)

    @property
    def reads(self) -> frozenset[str]:
        """All topics that the role reads, with its own journal."""
        return frozenset((*self.inputs, *self.own, *self.broadcasts))

    @property
    def followed(self) -> frozenset[str]:
        """Broadcasts of which every record is needed; only `hushstream.ops.logs.trim` deletes records of them."""
        declared = self.declared
        return frozenset(n for n in self.broadcasts if n in declared and declared[n].retention_ms is None)

    @property
    def recomputed(self) -> frozenset[str]:
        """The topics from which its outputs are recomputed, and with which they are compared; not marks and states."""
        return self.all - {self.marks, self.state}

    @property
    def all(self) -> frozenset[str]:
        """All topics that the role reads or writes."""
        return self.reads.union(self.writes)


async def check_topics(settings: WorkerSettings, topics: RoleTopics) -> int:
    """Check that all topics of a role exist, agree, have the declared settings, and may be read and written.

    Returns:
        The number of home partitions.

    Raises:
        BrokerUnreachable: no broker answered in time.
        BrokerVersionWrong: the broker speaks another version of the protocol.
        LogsMoved: the broker was closed, or is an earlier copy of one that was.
        TopicMissing: a topic does not exist.
        PartitionCountWrong: an input, or a topic that the role writes for itself, has a wrong number of partitions.
        AccessDenied: an access rule is missing.
        TopicSettingsWrong: a topic deletes records earlier than declared, or takes only smaller ones.
    """
    wanted = sorted(topics.all)
    cluster = await answered(settings, lambda: check_version(settings.cluster, settings.connect_timeout_seconds))
    if await asyncio.to_thread(closing_note(settings.marks_folder, cluster).exists):
        raise moved(settings.cluster)
    await answered(settings, lambda: require_rights(settings, topics))
    counts = await answered(settings, lambda: partition_counts(settings, wanted))
    for name in wanted:
        if counts[name] == 0:
            raise TopicMissing(
                f"topic {settings.physical(name)} does not exist (or may not be described); "
                f"{way_back(settings, topics, name)}"
            )
    partitions = topics.partitions if topics.partitions is not None else counts[topics.inputs[0]]
    for name in (*topics.inputs, *topics.own):
        if counts[name] != partitions:
            mend = settings.command(f"logs repair partitions {name} --write")
            more = f"; `{mend}` takes away what was added, and keeps the records" if counts[name] > partitions else ""
            raise PartitionCountWrong(
                f"topic {settings.physical(name)}: expected {count_text(partitions, 'partition')}, found "
                f"{counts[name]}{more}"
            )
    await answered(settings, lambda: check_declared(settings, topics.declared))
    return partitions


def closing_note(folder: Path, cluster: str) -> Path:
    """The file beside a worker's marks that says that the broker with this name was closed (`hushstream.ops.moving`).

    An earlier copy of the broker's data does not know that, and has the same name.
    """
    return folder / f"{cluster}.closed"


def way_back(settings: WorkerSettings, topics: RoleTopics, name: str) -> str:
    """Say with which commands a role goes on whose topic is missing."""
    made = f"`{settings.command('topics apply')}` makes it, empty"
    if name in topics.declared and topics.declared[name].holds_dead_letters:
        return f"{_IMPORT_AGAIN}; otherwise {made}"
    if name == topics.state:
        return f"{made}; then start this worker, which publishes its state there from its data directory or its journal"
    if name == topics.marks:
        return f"{made}; then start this worker, which names what to give to --accept-loss"
    if name in topics.computed:
        again = settings.command("logs repair models --write")
        return f"{made}; then, with no worker that publishes models running, `{again}` computes those that it held"
    return f"{made}; records that it held do not come back: see the runbook, `ExitReason`"


async def require_rights(settings: WorkerSettings, topics: RoleTopics) -> None:
    """Refuse to work without the rights that a role needs; errors as of `check_rights`."""
    needed = {settings.physical(name): operations for name, operations in operations_of(topics).items()}
    await check_rights(settings.cluster, needed, settings.group)


def operations_of(topics: RoleTopics) -> Mapping[str, set[int]]:
    """The broker's operations that a role needs on each topic (`hushstream.agents.kafka.administration`)."""
    # A role that measures idle time in ticks also writes ticks to its own input.
    ticks = {name for name in topics.inputs if name in topics.declared and topics.declared[name].ticks}
    writes = {*topics.writes, *topics.own, *ticks}
    return {
        name: {DESCRIBE_CONFIGS} | ({READ} if name in topics.reads else set()) | ({WRITE} if name in writes else set())
        for name in topics.all
    }


async def answered(settings: WorkerSettings, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a broker until it answers (it may be starting); raises `BrokerUnreachable` after the connect timeout."""
    deadline = time.monotonic() + settings.connect_timeout_seconds
    while True:
        try:
            async with asyncio.timeout(settings.connect_timeout_seconds):
                return await ask()
        except (KafkaError, OSError, TimeoutError) as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                why = await why_unreachable(settings.cluster, settings.connect_timeout_seconds)
                raise BrokerUnreachable(
                    f"no broker at {settings.bootstrap} answered within "
                    f"{settings.connect_timeout_seconds:g} s ({type(error).__name__}){why}"
                ) from None
            await asyncio.sleep(_RETRY_SECONDS)


@dataclass(frozen=True, slots=True)
class Kept:
    """How many copies a broker keeps of a topic's records.

    Attributes:
        name: the topic's name on the broker.
        copies: the number of replicas of the partition that has the fewest.
        in_sync: how many replicas must have a record before it counts as written (``min.insync.replicas``).
    """

    name: str
    copies: int
    in_sync: int

    @classmethod
    def of(cls, name: str, copies: int, settings: Mapping[str, str]) -> Kept:
        """Read the topic's settings; if ``min.insync.replicas`` is not among them, one replica is enough."""
        return cls(name, copies, int(settings.get(MIN_IN_SYNC, "1")))


def fewest_copies(described: Mapping[str, Any]) -> int:
    """The smallest number of replicas of any partition of a topic, which the admin client has described."""
    return min(len(partition["replicas"]) for partition in described["partitions"])


def loss_warnings(kept: Collection[Kept]) -> tuple[str, ...]:
    """Warn of topics of which the loss of one broker can lose acknowledged records; one line for each pair of numbers.

    Args:
        kept: topics whose records cannot be made again (`Topic.lasting`).
    """
    alike: dict[tuple[int, int], list[str]] = {}
    for one in sorted(kept, key=lambda one: one.name):
        if one.copies < LASTING_COPIES or one.in_sync < LASTING_IN_SYNC:
            alike.setdefault((one.copies, one.in_sync), []).append(one.name)
    return tuple(
        f"topics {', '.join(names)}: expected {LASTING_COPIES} copies or more and {MIN_IN_SYNC} {LASTING_IN_SYNC} or "
        f"more, found {copies} and {least}: the loss of one broker can lose records for ever, or stop "
        f"the deployment; `hushstream topics apply --replication {LASTING_COPIES} --min-insync {LASTING_IN_SYNC}` "
        f"creates such topics, and Kafka's `kafka-reassign-partitions.sh` and `kafka-configs.sh` change existing ones"
        for (copies, least), names in alike.items()
    )


async def check_declared(settings: WorkerSettings, topics: Mapping[str, Topic]) -> None:
    """Refuse topics that delete records earlier than declared, do not take large records, or compress.

    A topic may keep records for longer than declared: that harms no fold, and ``hushstream topics check`` reports it.
    If the broker is on another machine, too few copies are a warning in the log, and log times must be the broker's
    own. A writer that chose the log time would choose the window, the quota and the deadline of its record.

    Raises:
        TopicSettingsWrong: names the topic, both values, and what to do.
        AccessDenied: the access rules forbid reading the settings.
    """
    names = {settings.physical(topic): topic for topic in topics}
    async with administering(settings.cluster) as admin:
        found = await topic_settings(admin, sorted(names))
        lasting = [] if settings.cluster.on_loopback else [name for name in names if topics[names[name]].lasting]
        described = await admin.describe_topics(lasting) if lasting else []
    for warning in loss_warnings([Kept.of(one["topic"], fewest_copies(one), found[one["topic"]]) for one in described]):
        logger.warning("%s", warning)
    for difference in _harmful(settings, topics, found):
        # An import gives them their settings last, so that until then no worker begins on what is there.
        hint = f"{_IMPORT_AGAIN}; otherwise " if topics[difference.topic].holds_dead_letters else ""
        raise TopicSettingsWrong(f"{hint}{difference}, then run `{settings.command('topics check')}`")


def _harmful(
    settings: WorkerSettings, topics: Mapping[str, Topic], found: Mapping[str, Mapping[str, str]]
) -> Iterator[Difference]:
    """Settings that lose records or the order of log times; ``found`` has those of topics, by names on the broker."""
    same = _SAME if settings.cluster.on_loopback else (*_SAME, LOG_TIME)
    for topic in sorted(topics):
        name, declared = settings.physical(topic), topics[topic].settings()
        for setting in (*same, *_AT_LEAST) if name in found else ():
            wanted, there = declared[setting], found[name][setting]
            if there != wanted and (setting in same or _amount(setting, there) < _amount(setting, wanted)):
                yield Difference(topic, name, setting, wanted, there)


async def drift(settings: WorkerSettings, topics: RoleTopics, homes: int) -> tuple[Difference, ...]:
    """What `check_topics` would refuse now, of topics that a worker of this role uses; it is empty if nothing changed.

    Args:
        settings: of the worker.
        topics: of its role.
        homes: the number of home partitions when the worker began.

    Raises:
        KafkaError, OSError, TimeoutError: no broker answers.
    """
    names = {settings.physical(topic): topic for topic in sorted(topics.all)}
    needed = operations_of(topics)
    lacking = await missing_rights(settings.cluster, {name: needed[topic] for name, topic in names.items()})
    account = settings.cluster.security.account
    found = [Difference(names[name], name, RIGHTS, rights, f"none for {account}") for name, rights in lacking.items()]
    readable = [name for name, topic in names.items() if name not in lacking and topic in topics.declared]
    async with administering(settings.cluster) as admin:
        there = await topic_settings(admin, readable)
        described = await admin.describe_topics(readable)
    counted = {*topics.inputs, *topics.own}
    for one in described:
        name, topic, count = one["topic"], names[one["topic"]], len(one["partitions"])
        expected = homes if topic in counted else topics.counts.get(topic, count)
        if count not in (0, expected):
            found.append(Difference(topic, name, PARTITIONS, str(expected), str(count)))
        found += unwritable(topic, name, fewest_copies(one), there.get(name, {})) if count else ()
    return (*found, *_harmful(settings, topics.declared, there))


def unwritable(topic: str, name: str, copies: int, settings: Mapping[str, str]) -> tuple[Difference, ...]:
    """The difference of a topic that takes no record, as more copies must have it than there are; else empty."""
    least = settings.get(MIN_IN_SYNC, "1")
    return (Difference(topic, name, MIN_IN_SYNC, f"{copies} or less", least),) * (int(least) > copies)


async def topic_settings(admin: AIOKafkaAdminClient, names: Collection[str]) -> Mapping[str, Mapping[str, str]]:
    """Read the settings of each topic, by its name on the broker.

    Raises:
        AccessDenied: the access rules forbid reading the settings.
        KafkaError: the broker refused for another reason.
    """
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    settings: dict[str, Mapping[str, str]] = {}
    for code, message, _, name, entries in (found for answer in answers for found in answer.resources):
        if code and issubclass(for_code(code), DENIED):
            raise AccessDenied(f"topic {name}: the broker's access rules forbid reading its settings")
        if code:
            raise for_code(code)(message)
        settings[name] = {entry[0]: str(entry[1]) for entry in entries}
    return settings


def _amount(setting: str, value: str) -> float:
    number = int(value)
    return float("inf") if setting in _RETENTION and number < 0 else number
