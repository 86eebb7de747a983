"""An export holds every record, keeps others out, and is refused when it is damaged."""

from __future__ import annotations

import json
import random
import stat
from pathlib import Path
from typing import Any

import pytest

from hushstream.engine.records import InputRecord
from hushstream.ops.check.verify import verify_export
from hushstream.ops.export import (
    MANIFEST,
    ExportRefused,
    export_copy,
    open_export,
    read_manifest,
)
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.ops.partition_file import DamagedExport, PartitionWriter, open_partition
from hushstream.replay.runners.memory import MemoryLog


@pytest.fixture
def exported(deployment: Any, tmp_path: Path) -> Path:
    export_copy(LogCopy.of(deployment.log), deployment.system, tmp_path / "export")
    return tmp_path / "export"


def test_every_record_comes_back_with_offset_time_and_bytes(deployment: Any, exported: Path) -> None:
    again = {source: list(part.records) for source, part in open_export(exported).parts.items()}
    for source, records in deployment.log.partitions():
        assert again.pop(source) == records
    assert all(not records for records in again.values())


def test_an_export_loads_into_a_memory_log_and_verifies(deployment: Any, exported: Path) -> None:
    log = MemoryLog()
    for source, part in open_export(exported).parts.items():
        log.load(*source, list(part.records))
    assert log.end("contexts", 0) == deployment.log.end("contexts", 0)
    result = verify_export(exported, deployment.system, deployment.keys)
    assert result.ok
    assert sum(result.totals.values()) > 200


def test_only_the_owner_can_read_an_export_and_it_says_why(exported: Path) -> None:
    assert stat.S_IMODE(exported.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in exported.iterdir()} == {0o600}
    assert "contexts and clicks in clear" in json.loads((exported / MANIFEST).read_text(encoding="utf-8"))["notice"]


def test_the_manifest_counts_what_is_there(deployment: Any, exported: Path) -> None:
    manifest = read_manifest(exported)
    assert manifest.counts == deployment.system.partitions
    assert manifest.deployment == "small"
    assert manifest.records == sum(len(records) for _, records in deployment.log.partitions())
    assert {(part.topic, part.partition) for part in manifest.partitions} >= {("interactions", 0), ("decisions", 1)}


def test_offsets_with_holes_and_a_beginning_above_zero_survive(deployment: Any, tmp_path: Path) -> None:
    part = PartitionCopy(40, 60, [InputRecord(41, 5, b"a"), InputRecord(50, 6, b""), InputRecord(59, 7, b"c" * 70_000)])
    copy = LogCopy({("ledger", 0): part}, consistent=False)
    export_copy(copy, deployment.system, tmp_path / "holes")
    again = open_export(tmp_path / "holes")
    assert not again.consistent
    found = again.part(("ledger", 0))
    assert (found.low, found.high, list(found.records)) == (40, 60, part.records)
    assert list(found.read(42, 59)) == part.records[1:2]
    assert found.records[-1] == part.records[-1]


def test_any_damaged_byte_of_a_file_is_refused(exported: Path) -> None:
    path = exported / "decisions-0.log"
    content = path.read_bytes()
    draw = random.Random(5)
    for position in [0, 7, len(content) - 1, *(draw.randrange(len(content)) for _ in range(12))]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedExport, match=r"decisions-0\.log"):
            open_export(exported)


def test_a_cut_or_missing_file_is_refused(exported: Path) -> None:
    path = exported / "crowds-0.log"
    content = path.read_bytes()
    for length in (0, 5, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedExport, match=r"crowds-0\.log"):
            open_export(exported)
    path.unlink()
    with pytest.raises(DamagedExport, match=r"crowds-0\.log"):
        open_export(exported)


def test_a_file_of_another_partition_is_refused(exported: Path) -> None:
    (exported / "crowds-0.log").write_bytes((exported / "crowds-1.log").read_bytes())
    with pytest.raises(DamagedExport, match="the file that the manifest names"):
        open_export(exported)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": "hushstream-export", "version": 9}', "\x00"])
def test_a_folder_without_a_readable_manifest_is_no_export(exported: Path, content: str) -> None:
    (exported / MANIFEST).write_text(content, encoding="utf-8")
    with pytest.raises(DamagedExport, match=MANIFEST):
        open_export(exported)


def test_an_interrupted_export_is_no_export(deployment: Any, tmp_path: Path) -> None:
    with PartitionWriter(tmp_path / "clicks-0.log", ("clicks", 0), 0, 2) as writer:
        writer.add([InputRecord(0, 1, b"a")])
    assert not list(tmp_path.iterdir())
    with pytest.raises(DamagedExport, match="complete export"):
        open_export(tmp_path)


def test_a_folder_that_holds_something_is_not_overwritten(deployment: Any, exported: Path) -> None:
    with pytest.raises(ExportRefused, match="new or empty"):
        export_copy(LogCopy.of(deployment.log), deployment.system, exported)


def test_records_out_of_order_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "clicks-0.log"
    with PartitionWriter(path, ("clicks", 0), 0, 9) as writer:
        writer.add([InputRecord(3, 1, b"a"), InputRecord(2, 1, b"b")])
        writer.finish()
    with pytest.raises(DamagedExport, match="offset order"):
        open_partition(path)


def test_a_folder_that_cannot_be_made_is_said_in_one_line(deployment: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ExportRefused, match=r"cannot write to .*/file/export"):
        export_copy(LogCopy.of(deployment.log), deployment.system, tmp_path / "file" / "export")
