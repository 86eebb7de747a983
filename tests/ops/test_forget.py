"""Erasure by command, and exports from which an erased user's records are gone."""

from __future__ import annotations

import asyncio
import json
import os
import random
import stat
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.records import InputRecord
from hushstream.engine.state.published import NAME_BYTES, StateSeal
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify, verify_export
from hushstream.ops.export import MANIFEST, DamagedExport, ExportRefused, export_copy, open_export, read_manifest
from hushstream.ops.forget import ERASED, Forgotten, erase_export, forget_async
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import partition_of
from hushstream.systems.p2b.system import declare

CANARY = "ann-canary"
KEYS = KeySource(seed=7)


@pytest.fixture
def played(rigs: Any) -> Any:
    """A direct deployment in which two users had three rounds each, one record an event and one in a batch."""
    system = declare(rigs.make_system(public_dataset=True))
    log = MemoryLog()
    driver = DirectDriver(log, all_machines(system, KEYS), os.urandom(32))
    for number in range(3):
        for user in (CANARY, "bob"):
            fields = {"event_id": f"{user[0]}{number}", "user": user, "context": rigs.point(number).tobytes()}
            log.append("contexts", partition_of(user, 1), codec.encode("Context", fields))
            driver.pump()
    return system, log, driver


def forgotten(played: Any, wait_seconds: float = 5.0) -> Forgotten:
    system, log, driver = played
    return asyncio.run(forget_async(DirectEventLog(log, driver, 1), system, CANARY, wait_seconds))


def test_the_deletion_is_folded_and_what_stays_and_waits_is_said(played):
    done = forgotten(played)
    assert (done.folded, done.places) == (True, ((0, 6),))
    assert played[2].steps[-1].counts["forgotten"] == 1
    text = done.as_text()
    assert CANARY not in text
    for said in ("noise", "allowance", "contexts: 7 days", "clicks: 7 days", "sent as null within 10 s"):
        assert said in text


def test_without_a_learner_it_is_said_that_nobody_has_folded_it(played):
    system, log, _ = played

    class Deaf(DirectEventLog):
        async def append(self, topic: str, partition: int, value: bytes) -> int:
            return log.append(topic, partition, value)

        async def stop(self) -> None:
            pass

    done = asyncio.run(forget_async(Deaf(log, played[2], 1), system, CANARY, 0.05))
    assert not done.folded
    assert "no learner has folded it yet" in done.as_text()


@pytest.mark.parametrize("user", ["", "x" * 129])
def test_what_cannot_be_a_user_is_refused_without_being_repeated(played, user):
    with pytest.raises(HushstreamError, match=f"^user: expected 1 to 128 bytes in one line, got {len(user)}$"):
        asyncio.run(forget_async(DirectEventLog(played[1], played[2], 1), played[0], user, 1.0))


def test_verify_finds_a_log_with_a_deletion_equal(played):
    forgotten(played)
    system, log, _ = played
    found = verify(LogCopy.of(log), system, KEYS)
    assert found.ok
    assert not found.findings


def test_verify_says_of_an_erased_export_that_it_is_erased_and_not_changed(played, tmp_path):
    forgotten(played)
    system, log, _ = played
    export_copy(LogCopy.of(log), system, tmp_path / "copy")
    assert erase_export(tmp_path / "copy", system, CANARY) == 3
    records = open_export(tmp_path / "copy").part(("contexts", 0)).records
    assert [record.value == ERASED for record in records] == [True, False, True, False, True, False, False]
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    found = verify_export(tmp_path / "copy", system, KEYS)
    assert found.ok
    assert found.totals[Status.ERASED] == 3
    assert found.of("decisions")[Status.UNCHECKABLE] > 0


def test_no_sealed_state_of_an_erased_export_can_be_opened_again(played, tmp_path):
    system, log, _ = played
    state = all_machines(system, KEYS)[0].snapshot() + CANARY.encode()
    seal = StateSeal(system.config.deployment, "learner", 0, KEYS.ring("edge"))
    log.append("state-learner", 0, seal.pack(os.urandom(NAME_BYTES), 0, state))
    forgotten(played)
    export_copy(LogCopy.of(log), system, tmp_path / "copy")
    assert erase_export(tmp_path / "copy", system, CANARY) == 3
    (kept,) = open_export(tmp_path / "copy").part(("state-learner", 0)).records
    assert kept.value == ERASED
    assert verify_export(tmp_path / "copy", system, KEYS).ok


def test_what_they_wrote_after_the_deletion_stays_until_the_next(played, tmp_path, rigs):
    forgotten(played)
    system, log, driver = played
    fields = {"event_id": "again", "user": CANARY, "context": rigs.point(1).tobytes()}
    log.append("contexts", 0, codec.encode("Context", fields))
    driver.pump()
    for copy, number in (("first", 3), ("second", 4)):
        export_copy(LogCopy.of(log), system, tmp_path / copy)
        assert erase_export(tmp_path / copy, system, CANARY) == number
        assert verify_export(tmp_path / copy, system, KEYS).ok
        forgotten(played)


def test_values_taken_out_without_a_deletion_after_them_are_a_change(played):
    system, log, _ = played
    copy = LogCopy.of(log)
    part = copy.part(("contexts", 0))
    records = [part.records[0]._replace(value=ERASED), *part.records[1:]]
    cut = LogCopy({**copy.parts, ("contexts", 0): PartitionCopy(part.low, part.high, records)})
    found = verify(cut, system, KEYS)
    assert found.totals[Status.CHANGED] > 0
    assert not found.totals[Status.ERASED]
    assert "no deletion request says why" in str(found.findings[0])


def test_a_value_changed_beside_an_erasure_is_still_a_change(played, tmp_path):
    forgotten(played)
    system, log, _ = played
    copy = LogCopy.of(log)
    part = copy.part(("contexts", 0))
    altered = bytearray(part.records[1].value)
    altered[-1] ^= 1
    records = [part.records[0], part.records[1]._replace(value=bytes(altered)), *part.records[2:]]
    cut = LogCopy({**copy.parts, ("contexts", 0): PartitionCopy(part.low, part.high, records)})
    assert verify(cut, system, KEYS).totals[Status.CHANGED] > 0


def test_an_export_without_their_deletion_is_left_as_it_is(played, tmp_path):
    system, log, _ = played
    export_copy(LogCopy.of(log), system, tmp_path / "copy")
    with pytest.raises(ExportRefused, match="expected an export made after `hushstream forget`"):
        erase_export(tmp_path / "copy", system, CANARY)
    assert verify_export(tmp_path / "copy", system, KEYS).ok


@pytest.fixture
def exported(deployment: Any, tmp_path: Path) -> Path:
    export_copy(LogCopy.of(deployment.log), deployment.system, tmp_path / "export")
    return tmp_path / "export"


def test_every_record_comes_back_with_offset_time_and_bytes(deployment, exported):
    again = {source: list(part.records) for source, part in open_export(exported).parts.items()}
    for source, records in deployment.log.partitions():
        assert again.pop(source) == records
    assert all(not records for records in again.values())


def test_an_export_loads_into_a_memory_log_and_verifies(deployment, exported):
    log = MemoryLog()
    for source, part in open_export(exported).parts.items():
        log.load(*source, list(part.records))
    assert log.end("contexts", 0) == deployment.log.end("contexts", 0)
    result = verify_export(exported, deployment.system, deployment.keys)
    assert result.ok
    assert sum(result.totals.values()) > 200


def test_only_the_owner_can_read_an_export_and_it_says_why(exported):
    assert stat.S_IMODE(exported.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in exported.iterdir()} == {0o600}
    assert "contexts and clicks in clear" in json.loads((exported / MANIFEST).read_text(encoding="utf-8"))["notice"]


def test_the_manifest_counts_what_is_there(deployment, exported):
    manifest = read_manifest(exported)
    assert manifest.counts == deployment.system.partitions
    assert manifest.deployment == "small"
    assert manifest.records == sum(len(records) for _, records in deployment.log.partitions())
    assert {(part.topic, part.partition) for part in manifest.partitions} >= {("models", 0), ("decisions", 1)}


def test_offsets_with_holes_and_a_beginning_above_zero_survive(deployment, tmp_path):
    part = PartitionCopy(40, 60, [InputRecord(41, 5, b"a"), InputRecord(50, 6, b""), InputRecord(59, 7, b"c" * 70_000)])
    copy = LogCopy({("ledger", 0): part}, consistent=False)
    export_copy(copy, deployment.system, tmp_path / "holes")
    again = open_export(tmp_path / "holes")
    assert not again.consistent
    found = again.part(("ledger", 0))
    assert (found.low, found.high, list(found.records)) == (40, 60, part.records)
    assert list(found.read(42, 59)) == part.records[1:2]
    assert found.records[-1] == part.records[-1]


def test_any_damaged_byte_of_a_file_is_refused(exported):
    path = exported / "decisions-0.log"
    content = path.read_bytes()
    draw = random.Random(5)
    for position in [0, 7, len(content) - 1, *(draw.randrange(len(content)) for _ in range(12))]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedExport, match=r"decisions-0\.log"):
            open_export(exported)


def test_a_cut_or_missing_file_is_refused(exported):
    path = exported / "window-sums-0.log"
    content = path.read_bytes()
    for length in (0, 5, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedExport, match=r"window-sums-0\.log"):
            open_export(exported)
    path.unlink()
    with pytest.raises(DamagedExport, match=r"window-sums-0\.log"):
        open_export(exported)


def test_a_file_of_another_partition_is_refused(exported):
    (exported / "decisions-0.log").write_bytes((exported / "decisions-1.log").read_bytes())
    with pytest.raises(DamagedExport, match="the file that the manifest names"):
        open_export(exported)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": "hushstream-export", "version": 9}', "\x00"])
def test_a_folder_without_a_readable_manifest_is_no_export(exported, content):
    (exported / MANIFEST).write_text(content, encoding="utf-8")
    with pytest.raises(DamagedExport, match=MANIFEST):
        open_export(exported)


def test_an_interrupted_export_is_no_export(deployment, tmp_path):
    records = [InputRecord(0, 1, b"a"), InputRecord(1, 2, None)]  # type: ignore[arg-type]  # what stops it
    with pytest.raises(TypeError):
        export_copy(LogCopy({("clicks", 0): PartitionCopy(0, 2, records)}), deployment.system, tmp_path / "export")
    with pytest.raises(DamagedExport, match="complete export"):
        open_export(tmp_path / "export")


def test_a_folder_that_holds_something_is_not_overwritten(deployment, exported):
    with pytest.raises(ExportRefused, match="new or empty"):
        export_copy(LogCopy.of(deployment.log), deployment.system, exported)


@pytest.mark.parametrize("offsets", [(3, 2), (2, 2), (9,)], ids=["backwards", "twice", "beyond"])
def test_records_out_of_order_are_refused(deployment, tmp_path, offsets):
    part = PartitionCopy(0, 9, [InputRecord(offset, 1, b"a") for offset in offsets])
    export_copy(LogCopy({("clicks", 0): part}), deployment.system, tmp_path / "export")
    with pytest.raises(DamagedExport, match="offset order"):
        open_export(tmp_path / "export")


def test_a_folder_that_cannot_be_made_is_said_in_one_line(deployment, tmp_path):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ExportRefused, match=r"cannot write to .*/file/export"):
        export_copy(LogCopy.of(deployment.log), deployment.system, tmp_path / "file" / "export")
