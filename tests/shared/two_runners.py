"""What one loop leaves on two runners: `verify` computes both again, and finds each change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.declare.declaration import System
from hushstream.ops.check.verify import verify, verify_export
from hushstream.ops.export import export_copy
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.replay.runners.playing import Recording
from hushstream.schemas import codec
from hushstream.schemas.topics import common_name


def decoded(recording: Recording[Any], topic: str, schema: str) -> Iterator[dict[str, Any]]:
    """Records of a topic in one schema, of all parties where each has a topic of its own."""
    for (name, _), part in sorted(recording.logs.parts.items()):
        if common_name(name) == topic:
            for record in part.records:
                kind, fields = codec.decode(record.value)
                if kind == schema:
                    yield dict(fields)


def require_recomputed(system: System, keys: KeySource, *recordings: Recording[Any]) -> None:
    """Everything that each of them published is equal to what follows from its logs."""
    for recording in recordings:
        found = verify(recording.logs, system, keys)
        assert found.exit_code == 0, found
        assert not found.findings


def require_export_recomputed(system: System, keys: KeySource, recording: Recording[Any], folder: Path) -> None:
    """An export of it is equal, too."""
    export_copy(recording.logs, system, folder / "export")
    assert verify_export(folder / "export", system, keys).exit_code == 0


def require_changes_found(system: System, keys: KeySource, logs: LogCopy) -> set[str]:
    """A changed byte is found in the first, the middle and the last record of each partition.

    Marks and states say when a worker did what: nothing to compute again. Whoever takes a partition up refuses them.

    Returns:
        The topics, by their common names.
    """
    left_out = ("marks-", "state-")
    sources = [source for source, part in logs.parts.items() if part.records and not source[0].startswith(left_out)]
    for source in sources:
        records = list(logs.part(source).records)
        for index in {0, len(records) // 2, len(records) - 1}:
            bent = bytearray(records[index].value)
            bent[len(bent) // 2] ^= 1
            changed = [*records[:index], records[index]._replace(value=bytes(bent)), *records[index + 1 :]]
            assert verify(with_records(logs, source, changed), system, keys).exit_code == 1, (source, index)
    return {common_name(topic) for topic, _ in sources}


def with_records(logs: LogCopy, source: tuple[str, int], records: list[Any]) -> LogCopy:
    """The logs with other records in one partition."""
    part = logs.part(source)
    return dataclasses.replace(logs, parts={**logs.parts, source: PartitionCopy(part.low, part.high, records)})
