"""Exporting a deployment's logs into files, and reading such an export back.

An export is a folder with one file for each partition (`hushstream.ops.partition_file`) and ``manifest.json``, which is
written last: a folder without it is not an export. It holds everything, also what users do, in clear. So only the owner
can read the folder and its files, and the manifest says why.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hushstream.engine.declare.declaration import System
from hushstream.engine.records import TopicPartition
from hushstream.ops.connection import Connection
from hushstream.ops.live import Pause, open_logs
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.ops.partition_file import FILE_MODE, DamagedExport, PartitionWriter, Written, open_partition
from hushstream.schemas.errors import HushstreamError

MANIFEST = "manifest.json"
_NOTICE = "Only the owner can read its files; keep it that way, and delete the folder when it is no longer needed."

_FORMAT, _VERSION = "hushstream-export", 1
_FOLDER_MODE = 0o700


class ExportRefused(HushstreamError):
    """An export cannot be written to the folder."""


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """The manifest's entry for one partition."""

    topic: str
    partition: int
    file: str
    low: int
    high: int
    records: int
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``manifest.json``.

    Attributes:
        deployment, config_digest: the deployment whose logs were exported.
        counts: the number of the deployment's partitions, by topic.
        quiet: `LogCopy.consistent`, under the name that it has in the file.
        partitions: one entry for each file.
        notice: a warning that the files hold private data.
    """

    deployment: str
    config_digest: str
    counts: Mapping[str, int]
    quiet: bool
    partitions: tuple[ExportedPartition, ...]
    notice: str

    @property
    def records(self) -> int:
        """The number of records in all files."""
        return sum(part.records for part in self.partitions)

    def as_json(self) -> dict[str, Any]:
        """The plain values of ``manifest.json``."""
        return {"format": _FORMAT, "version": _VERSION, **asdict(self)}


def held_in_clear(system: System) -> str:
    """Say in words what an export of all topics holds in clear."""
    named = [topic.name for topic in system.topics if topic.names_users]
    if not named:
        return "what each zone keeps from the others in clear"
    return f"{' and '.join(filter(None, (', '.join(named[:-1]), named[-1])))} in clear"


def export(
    connection: Connection,
    system: System,
    directory: Path,
    topics: Collection[str] | None = None,
    until: Mapping[TopicPartition, int] | None = None,
) -> Manifest:
    """`export_async`, for code without an event loop."""
    return asyncio.run(export_async(connection, system, directory, topics, until=until))


async def export_async(
    connection: Connection,
    system: System,
    directory: Path,
    topics: Collection[str] | None = None,
    pause: Pause | None = None,
    until: Mapping[TopicPartition, int] | None = None,
) -> Manifest:
    """Write a deployment's topics, up to the ends seen at the start, into a new folder.

    Args:
        connection: where the deployment is.
        system: the deployment.
        directory: a folder that does not exist yet, or is empty.
        topics: the topics to write; None for all.
        pause: how long to wait for a moment in which nobody writes.
        until: the partitions to write, each with the offset before which to stop; None writes all of them, to the end.

    Raises:
        ExportRefused: the folder is not empty, or cannot be created.
        HushstreamError: the topics cannot be read (`open_logs`).
    """
    counts = system.partitions
    async with open_logs(connection, counts, topics, pause) as logs:
        _prepare(directory)
        lines = []
        for source, (low, high) in _bounds(logs.cut.bounds, until).items():
            with _writing(directory), PartitionWriter(directory / _file(source), source, low, high) as writer:
                async for portion in logs.records(source, high):
                    writer.add(portion)
                lines.append(_line(source, low, high, writer.finish()))
        return _finish(directory, system, counts, logs.cut.consistent, lines)


def _bounds(
    there: Mapping[TopicPartition, tuple[int, int]], until: Mapping[TopicPartition, int] | None
) -> Mapping[TopicPartition, tuple[int, int]]:
    if until is None:
        return there
    return {source: (there[source][0], min(there[source][1], end)) for source, end in until.items()}


def export_copy(copy: LogCopy, system: System, directory: Path) -> Manifest:
    """Write a copy into a new folder.

    Raises:
        ExportRefused: the folder is not empty, or cannot be created.
    """
    counts = system.partitions
    declared = ((topic, partition) for topic, count in counts.items() for partition in range(count))
    _prepare(directory)
    lines = []
    for source in dict.fromkeys((*declared, *copy.parts)):
        part = copy.part(source)
        with _writing(directory), PartitionWriter(directory / _file(source), source, part.low, part.high) as writer:
            writer.add(part.records)
            lines.append(_line(source, part.low, part.high, writer.finish()))
    return _finish(directory, system, counts, copy.consistent, lines)


def open_export(directory: Path) -> LogCopy:
    """Open an export; its records are read from disk on demand.

    Raises:
        DamagedExport: the folder is not a complete export, or a file of it was changed.
    """
    manifest = read_manifest(directory)
    parts: dict[TopicPartition, PartitionCopy] = {}
    for line in manifest.partitions:
        path = directory / line.file
        source, part, digest = open_partition(path)
        if source != (line.topic, line.partition) or digest != line.digest:
            raise DamagedExport(f"{path}: expected the file that the manifest names, got another one")
        parts[source] = part
    return LogCopy(parts, manifest.quiet)


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of an export.

    Raises:
        DamagedExport: there is no readable manifest of this format.
    """
    path = directory / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content.pop("format"), content.pop("version")) != (_FORMAT, _VERSION):
            raise DamagedExport(f"{path}: expected {_FORMAT} version {_VERSION}, got another format")
        lines = tuple(ExportedPartition(**line) for line in content.pop("partitions"))
        return Manifest(**content, partitions=lines)
    except FileNotFoundError:
        raise DamagedExport(f"{directory}: expected a complete export, it has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedExport(f"{path}: expected an export's manifest, got {type(error).__name__}") from None


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Turn an error of the disk into `ExportRefused`; errors of the network pass through."""
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        raise ExportRefused(f"export: cannot write to {directory} ({error.strerror})") from None


def _prepare(directory: Path) -> None:
    with _writing(directory):
        directory.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ExportRefused(f"export: expected {directory} to be new or empty, it holds files")
        directory.chmod(_FOLDER_MODE)


def _file(source: TopicPartition) -> str:
    return f"{source[0]}-{source[1]}.log"


def _line(source: TopicPartition, low: int, high: int, written: Written) -> ExportedPartition:
    return ExportedPartition(*source, _file(source), low, high, written.records, written.size, written.digest)


def _finish(
    directory: Path, system: System, counts: Mapping[str, int], consistent: bool, lines: Iterable[ExportedPartition]
) -> Manifest:
    notice = f"This folder holds {held_in_clear(system)}, and what follows from it. {_NOTICE}"
    manifest = Manifest(system.config.deployment, system.digest.hex(), counts, consistent, tuple(lines), notice)
    with _writing(directory):
        handle = os.open(directory / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(manifest.as_json(), file, indent=2)
    return manifest
