"""Moves a deployment from an embedded broker that was closed to another broker, where it goes on as if nothing was.

What identifies a log moves with it: offsets, log times, keys, and what the groups have committed. So journals go on
from their records and marks, and no role sees another log than the one that it has folded. Marks and states are
compacted: their records move in their order, under new offsets, which nothing names.

Two copies that go on would draw the same noise for different data. So the source is closed before anything is read. The
note of it lies in its own data and, as an earlier copy of that does not hold it, also beside each worker's marks. An
export is brought to one cluster alone: the first import notes which.

An import writes what is missing, so it may be run again whenever it was ended. The topics of dead letters, which every
role writes, come last, and get their settings when all is there: until then no worker begins, and `topics apply`
refuses.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as BrokerPartition

from hushstream.agents.datadir import owner_only
from hushstream.agents.kafka.administration import administering
from hushstream.agents.worker.preflight import closing_note
from hushstream.engine.declare.declaration import System
from hushstream.engine.records import TopicPartition
from hushstream.ops.connection import Connection, client_errors
from hushstream.ops.export import DamagedExport, ExportRefused, Manifest, export_async, open_export, read_manifest
from hushstream.ops.log_copy import LogCopy, PartitionCopy, open_logs
from hushstream.ops.logs.losses import require_stopped
from hushstream.ops.logs.remake import configure, write, written
from hushstream.ops.topics import FILLED, Creation, Existing, create_async, describe_async
from hushstream.privacy.key_files import sync_folder
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import LOG_TIME, MIN_IN_SYNC, Topic, physical

_DOING = "import topics"
_COMMITS, _TARGET, _EXPORTED = "commits.json", "target", "exported"
_WHILE_FILLED = {LOG_TIME: FILLED, "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Settings while records are written: all of them stay, however old, or an import could not go on."""
_NOT_YET = {**_WHILE_FILLED, "max.message.bytes": str(1 << 20)}
"""Those of the topics of dead letters: less than is declared, so a worker refuses them."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What a group has committed for a partition; the metadata say what was sent."""

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str


def note_closing(folders: Collection[Path], cluster: str) -> None:
    """Note beside the marks of workers that a cluster was closed.

    Raises:
        ExportRefused: a note cannot be written.
    """
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            keep(closing_note(folder, cluster), "")
        except OSError as error:
            raise ExportRefused(f"{folder}: the closing cannot be noted ({error.strerror}); nothing was done") from None


def note_export(source: Path, directory: Path) -> None:
    """Note in the folder of a source where its topics go: each of two exports may be brought to a cluster of its own.

    Raises:
        ExportRefused: there is an export already.
    """
    note = source / _EXPORTED
    before = Path(note.read_text(encoding="utf-8")) if note.exists() else directory
    if (before / _COMMITS).exists():
        raise ExportRefused(
            f"{source}: found an export in {before}: import that one; delete it only if no import of it has begun"
        )
    keep(note, str(directory.resolve()))


def was_exported(source: Path) -> bool:
    """Whether `note_export` was called for a source."""
    return (source / _EXPORTED).exists()


async def export_closed(connection: Connection, system: System, directory: Path) -> Manifest:
    """Export all topics of a broker that was closed, and what groups have committed, for `import_async`.

    Raises:
        ExportRefused: the folder is not empty, or cannot be written.
    """
    commits = []
    async with client_errors(connection, "read commits"), administering(connection.cluster) as admin:
        for group, *_ in await admin.list_consumer_groups():
            for place, found in (await admin.list_consumer_group_offsets(group)).items():
                topic = place.topic.removeprefix(connection.prefix)
                if topic in system.partitions and place.topic == physical(connection.prefix, topic):
                    commits.append(Commit(group, topic, place.partition, found.offset, found.metadata))
    manifest = await export_async(connection, system, directory)
    keep(directory / _COMMITS, json.dumps([[getattr(c, name) for name in Commit.__slots__] for c in commits]))
    return manifest


async def import_async(
    connection: Connection, system: System, directory: Path, replication: int, min_in_sync: int | None
) -> int:
    """Write the topics of a closed broker to another one; gives the number of records that were not there yet.

    Args:
        connection: where the deployment goes on.
        system: the deployment.
        directory: the export of the closed broker.
        replication, min_in_sync: of new topics, as of `hushstream.ops.topics.apply_async`.

    Raises:
        DamagedExport: the folder is no complete export of a closed broker, or of another deployment.
        HushstreamError: the export was brought to another cluster, workers run here, or the topics hold other records.
    """
    manifest, logs, commits = read_manifest(directory), open_export(directory), _commits(directory)
    if (manifest.deployment, manifest.config_digest) != (system.config.deployment, system.digest.hex()):
        raise DamagedExport(
            f"{directory}: expected an export of {system.config.deployment} with configuration {system.digest.hex()}, "
            f"got {manifest.deployment} with {manifest.config_digest}: give the --deployment that was exported (of "
            f"`hushstream up` that in the newest DATA/generation-N)"
        )
    await require_stopped(connection, system, system.roles)
    async with connection.admin(_DOING) as admin:
        _settle_target(directory, (await admin.describe_cluster())["cluster_id"])
    there = await describe_async(connection, system)
    parts = {source: _as_written(logs, source, topic) for topic in system.topics for source in _sources(system, topic)}
    held = await _held(connection, system, there, parts)
    letters = [topic for topic in system.topics if topic.holds_dead_letters]
    others = [topic for topic in system.topics if topic not in letters]
    for topics, meanwhile in ((others, _WHILE_FILLED), (letters, _NOT_YET)):
        wanted = [
            Creation(t.name, physical(connection.prefix, t.name), system.partitions[t.name], meanwhile)
            for t in topics
            if t.name not in there
        ]
        await create_async(connection, wanted, replication, min_in_sync)
        least = await describe_async(connection, system)
        settings = {t.name: {**t.settings(), **_in_sync(least[t.name])} for t in topics}
        for topic in topics:
            name, sources = physical(connection.prefix, topic.name), _sources(system, topic)
            if any(held[source] < len(parts[source].records) for source in sources) or topic.name not in there:
                await configure(connection, name, {**settings[topic.name], **meanwhile})
                for source in sources:
                    await write(connection, source, parts[source].low, parts[source].behind(held[source]))
        if topics is not letters:
            await _commit(connection, commits)
        for topic in topics:
            await configure(connection, physical(connection.prefix, topic.name), settings[topic.name])
    return sum(len(part.records) - held[source] for source, part in parts.items())


def _sources(system: System, topic: Topic) -> list[TopicPartition]:
    return [(topic.name, number) for number in range(system.partitions[topic.name])]


def _as_written(logs: LogCopy, source: TopicPartition, topic: Topic) -> PartitionCopy:
    part = logs.part(source)
    if topic.cleanup != "compact":
        return part
    records = [record._replace(offset=place) for place, record in enumerate(part.records)]
    return PartitionCopy(0, len(records), records, part.keys)


async def _held(
    connection: Connection,
    system: System,
    there: Mapping[str, Existing],
    parts: Mapping[TopicPartition, PartitionCopy],
) -> Mapping[TopicPartition, int]:
    """How many records of each partition were written before; nothing is changed if one holds others."""
    held = dict.fromkeys(parts, 0)
    if not there:
        return held
    async with open_logs(connection, system.partitions, there.keys()) as logs:
        for source in (source for source in parts if source[0] in there):
            done = await written(logs, source, parts[source])
            if done is None:
                raise HushstreamError(
                    f"{_DOING}: {physical(connection.prefix, source[0])}/{source[1]} holds other records than the "
                    f"export: nothing was changed; if they are of no use, delete the topics {connection.prefix}* and "
                    "run it again"
                )
            held[source] = done
    return held


def _in_sync(topic: Existing) -> Mapping[str, str]:
    least = topic.settings.get(MIN_IN_SYNC)
    return {} if least is None else {MIN_IN_SYNC: least}


async def _commit(connection: Connection, commits: Sequence[Commit]) -> None:
    for group, found in groupby(commits, lambda commit: commit.group):
        offsets = {
            BrokerPartition(physical(connection.prefix, c.topic), c.partition): OffsetAndMetadata(c.offset, c.metadata)
            for c in found
        }
        async with (
            client_errors(connection, _DOING),
            AIOKafkaConsumer(
                **connection.cluster.client_options(), group_id=group, enable_auto_commit=False
            ) as consumer,
        ):
            consumer.assign(list(offsets))
            await consumer.commit(offsets)


def _commits(directory: Path) -> Sequence[Commit]:
    path = directory / _COMMITS
    try:
        return [Commit(*line) for line in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        raise DamagedExport(
            f"{directory}: expected an export of a broker that was closed (`topics export --close`): a copy of one "
            "that goes on would be a second life of its keys"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise DamagedExport(f"{path}: expected what groups have committed, got {type(error).__name__}") from None


def _settle_target(directory: Path, cluster: str) -> None:
    """Let an export go to one cluster only."""
    path = directory / _TARGET
    if not path.exists():
        keep(path, cluster)
    known = path.read_text(encoding="utf-8")
    if known != cluster:
        raise HushstreamError(
            f"{directory}: expected the cluster {known}, to which it was brought before, got {cluster}: go on there, "
            "as two copies would draw the same noise for different data"
        )


def keep(path: Path, text: str) -> None:
    """Write a small file so that it is there whole, whatever ends this process."""
    fresh = path.with_name(f"{path.name}.new")
    with open(fresh, "w", encoding="utf-8", opener=owner_only) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
