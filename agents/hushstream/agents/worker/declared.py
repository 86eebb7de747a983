"""Compares topic settings on the broker with their declaration: a worker refuses a difference, or warns of it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from hushstream.agents.errors import DENIED, AccessDenied, TopicSettingsWrong
from hushstream.agents.kafka.administration import administering
from hushstream.agents.settings import WorkerSettings
from hushstream.schemas.topics import (
    COMPRESSION,
    LASTING_COPIES,
    LASTING_IN_SYNC,
    MIN_IN_SYNC,
    UNCLEAN_ELECTION,
    Topic,
)

logger = logging.getLogger(__name__)

_RETENTION = ("retention.ms", "retention.bytes")
_SAME = ("cleanup.policy", UNCLEAN_ELECTION, COMPRESSION)
_AT_LEAST = (*_RETENTION, "max.message.bytes")
_LOG_TIME = "message.timestamp.type"


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
    same = _SAME if settings.cluster.on_loopback else (*_SAME, _LOG_TIME)
    for name, topic in sorted(names.items()):
        declared = topics[topic].settings()
        for setting in (*same, *_AT_LEAST):
            wanted, there = declared[setting], found[name][setting]
            if there != wanted and (setting in same or _amount(setting, there) < _amount(setting, wanted)):
                raise TopicSettingsWrong(
                    f"topic {name}: expected {setting} {wanted}, found {there}; set it with Kafka's own "
                    f"`kafka-configs.sh --alter --topic {name} --add-config {setting}={wanted}`, "
                    f"then run `{settings.command('topics check')}`"
                )


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
