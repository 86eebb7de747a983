"""Compares a deployment's topics on a broker with the declaration, and creates missing ones.

Nothing here changes a partition count or deletes: both would break the logs that everything is recomputed
from. A topic that differs is reported with what was expected and what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka.admin import NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from hushstream.agents.worker.preflight import (
    Difference,
    Kept,
    fewest_copies,
    loss_warnings,
    topic_settings,
    unwritable,
)
from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection, guard_code
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import LASTING_IN_SYNC, LOG_TIME, MIN_IN_SYNC, physical

FILLED = "CreateTime"
"""The value of `LOG_TIME` while records are written again with the log times that they had."""
ANY_REPLICATION = -1
"""The broker's own default replication factor."""


@dataclass(frozen=True, slots=True)
class Existing:
    """A topic as the broker describes it."""

    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)
    copies: int = 1
    """The number of replicas of the partition that has the fewest."""


@dataclass(frozen=True, slots=True)
class Creation:
    """A missing topic, and how to create it."""

    topic: str
    name: str
    """The topic's name on the broker."""
    partitions: int
    settings: Mapping[str, str]


def plan(system: System, existing: Mapping[str, Existing], prefix: str) -> tuple[Creation, ...]:
    """Find the topics that must be created.

    Args:
        system: the deployment.
        existing: the existing topics, by logical name (`describe`).
        prefix: the prefix of the deployment's topic names.
    """
    return tuple(
        Creation(topic.name, physical(prefix, topic.name), system.partitions[topic.name], topic.settings())
        for topic in system.topics
        if topic.name not in existing
    )


def differences(
    system: System, existing: Mapping[str, Existing], prefix: str, least_in_sync: int = 1
) -> tuple[Difference, ...]:
    """Find the differences from the declaration: missing topics, other partition counts, other settings.

    Args:
        system: the deployment.
        existing: the existing topics, by logical name (`describe`).
        prefix: the prefix of the deployment's topic names.
        least_in_sync: the least ``min.insync.replicas`` for topics whose records cannot be made again.
    """
    found = []
    for declared in system.topics:
        topic, count = declared.name, system.partitions[declared.name]
        name = physical(prefix, topic)
        there = existing.get(topic)
        if there is None:
            found.append(Difference(topic, name, "topic", "to exist", "none (or it may not be described)"))
            continue
        if there.partitions != count:
            found.append(Difference(topic, name, "partitions", str(count), str(there.partitions)))
        for setting, wanted in declared.settings().items():
            value = there.settings.get(setting, "no such setting")
            if value != wanted:
                found.append(Difference(topic, name, setting, wanted, value))
        found += unwritable(topic, name, there.copies, there.settings)
        in_sync = int(there.settings.get(MIN_IN_SYNC, "1"))
        if declared.lasting and in_sync < least_in_sync:
            found.append(Difference(topic, name, MIN_IN_SYNC, f"{least_in_sync} or more", str(in_sync)))
    return tuple(found)


async def describe_async(connection: Connection, system: System) -> dict[str, Existing]:
    """Read which of a deployment's topics exist, by logical name, with their settings.

    Raises:
        BrokerUnreachable, AccessDenied, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    names = {physical(connection.prefix, topic.name): topic.name for topic in system.topics}
    async with connection.admin("describe topics") as admin:
        # Describe all topics of the cluster: a broker with auto-creation would create a topic that is named.
        described = {found["topic"]: found for found in await admin.describe_topics() if found["topic"] in names}
        if not described:
            return {}
        settings = await topic_settings(admin, sorted(described))
    return {
        names[name]: Existing(len(found["partitions"]), settings[name], fewest_copies(found))
        for name, found in sorted(described.items())
    }


async def apply_async(
    connection: Connection, system: System, replication: int = ANY_REPLICATION, min_in_sync: int | None = None
) -> tuple[Creation, ...]:
    """Create missing topics, and return what was created; a second call creates nothing.

    Args:
        connection: where the deployment is.
        system: the deployment.
        replication: the number of replicas of each partition, or `ANY_REPLICATION`.
        min_in_sync: how many replicas must have a record before it counts as written; None for the broker's default.

    Raises:
        HushstreamError: ``min_in_sync`` is more than the number of replicas.
        BrokerUnreachable, AccessDenied, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    if min_in_sync is not None and replication != ANY_REPLICATION and min_in_sync > replication:
        raise HushstreamError(
            f"create topics: expected at most as many copies in sync as there are ({replication}), got {min_in_sync}: "
            f"nothing could be written"
        )
    there = await describe_async(connection, system)
    wanted = plan(system, there, connection.prefix)
    letters = {topic.name for topic in system.topics if topic.holds_dead_letters}
    if letters & {new.topic for new in wanted} and any(is_filled(existing) for existing in there.values()):
        raise HushstreamError(
            "create topics: an import of the topics ended half-way; run `hushstream topics import` again, which goes on"
        )
    return await create_async(connection, wanted, replication, min_in_sync)


def is_filled(existing: Existing) -> bool:
    """Whether an import writes records to a topic, or one that ended did: with log times of before, none too old."""
    return (existing.settings.get(LOG_TIME), existing.settings.get("retention.ms")) == (FILLED, "-1")


async def create_async(
    connection: Connection, wanted: Sequence[Creation], replication: int, min_in_sync: int | None
) -> tuple[Creation, ...]:
    """Create topics, and return those that were not there; arguments and errors as of `apply_async`."""
    if not wanted:
        return ()
    async with connection.admin("create topics") as admin:
        answer = await admin.create_topics([_request(new, replication, min_in_sync) for new in wanted])
    created = list[Creation]()
    codes = {name: (code, message) for name, code, message in answer.topic_errors}
    for new in wanted:
        code, message = codes[new.name]
        if code == TopicAlreadyExistsError.errno:
            # Somebody else has created it in the meantime; the check will say whether it is as declared.
            continue
        guard_code(f"create topic {new.name}", code, message, for_code)
        created.append(new)
    return tuple(created)


def _request(new: Creation, replication: int, min_in_sync: int | None) -> NewTopic:
    least = {} if min_in_sync is None else {MIN_IN_SYNC: str(min_in_sync)}
    request = NewTopic(new.name, new.partitions, 1, topic_configs={**new.settings, **least})
    # The constructor refuses -1 (the broker's default), which the protocol allows.
    request.replication_factor = replication
    return request


async def check_async(connection: Connection, system: System, one_in_sync: bool = False) -> tuple[Difference, ...]:
    """Find what on the broker is not as declared; empty if there is no difference.

    Args:
        connection: where the deployment is.
        system: the deployment.
        one_in_sync: whether to accept that, with several brokers, one replica is enough for a record to count as
            written, also in topics whose records cannot be made again. The loss of one broker can then roll a journal
            back.

    Raises:
        BrokerUnreachable, AccessDenied, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    there = await describe_async(connection, system)
    async with connection.admin("describe the cluster") as admin:
        brokers = len((await admin.describe_cluster())["brokers"])
    least = LASTING_IN_SYNC if not one_in_sync and brokers > 1 else 1
    return differences(system, there, connection.prefix, least)


async def warnings_async(connection: Connection, system: System) -> tuple[str, ...]:
    """Warn of lasting topics that are as declared, but that the loss of one broker could lose; one line each.

    There are no warnings for a broker on this machine, which is for development.

    Raises:
        BrokerUnreachable, AccessDenied, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    if connection.cluster.on_loopback:
        return ()
    described = await describe_async(connection, system)
    lasting = {
        topic.name: described[topic.name] for topic in system.topics if topic.lasting and topic.name in described
    }
    return loss_warnings(
        [Kept.of(physical(connection.prefix, topic), there.copies, there.settings) for topic, there in lasting.items()]
    )
