"""Topic settings on the broker against their declaration: what a worker must not start with."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from hushstream.agents.errors import DENIED, AccessDenied, TopicSettingsWrong
from hushstream.agents.settings import WorkerSettings
from hushstream.schemas.topics import TOPICS

_RETENTION = ("retention.ms", "retention.bytes")
_SAME = ("cleanup.policy",)
_AT_LEAST = (*_RETENTION, "max.message.bytes")


async def check_declared(settings: WorkerSettings, topics: Collection[str]) -> None:
    """Refuse topics that would lose records earlier than declared, or could not take the largest.

    That a topic keeps records for longer is told by ``hushstream topics check``; it does no harm to a fold.

    Raises:
        TopicSettingsWrong: names the topic, both values, and what to do.
        AccessDenied: the settings may not be read.
    """
    names = {settings.physical(topic): topic for topic in topics if topic in TOPICS}
    admin = AIOKafkaAdminClient(**settings.client_options())
    await admin.start()
    try:
        found = await topic_settings(admin, sorted(names))
    finally:
        await admin.close()
    for name, topic in sorted(names.items()):
        declared = TOPICS[topic].settings()
        for setting in (*_SAME, *_AT_LEAST):
            wanted, there = declared[setting], found[name][setting]
            if there != wanted and (setting in _SAME or _amount(setting, there) < _amount(setting, wanted)):
                raise TopicSettingsWrong(
                    f"topic {name}: expected {setting} {wanted}, found {there}; set it with Kafka's own "
                    f"`kafka-configs.sh --alter --topic {name} --add-config {setting}={wanted}`, "
                    f"then run `hushstream topics check`"
                )


async def topic_settings(admin: AIOKafkaAdminClient, names: Collection[str]) -> Mapping[str, Mapping[str, str]]:
    """The settings of each topic, by its name on the broker.

    Raises:
        AccessDenied: they may not be read.
        KafkaError: the broker refused for another reason.
    """
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    settings: dict[str, Mapping[str, str]] = {}
    for code, message, _, name, entries in (found for answer in answers for found in answer.resources):
        if code and issubclass(for_code(code), DENIED):
            raise AccessDenied(f"topic {name}: the broker's access rules forbid to read its settings")
        if code:
            raise for_code(code)(message)
        settings[name] = {entry[0]: str(entry[1]) for entry in entries}
    return settings


def _amount(setting: str, value: str) -> float:
    number = int(value)
    return float("inf") if setting in _RETENTION and number < 0 else number
