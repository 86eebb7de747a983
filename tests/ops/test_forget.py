"""Erasing a user: a tombstone in the log, what stays and what waits, and `verify` that tells it from a change."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.state.published import NAME_BYTES, StateSeal
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify, verify_export
from hushstream.ops.export import ExportRefused, export_copy, open_export
from hushstream.ops.forget import ERASED, Forgotten, erase_export, forget_async
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.partitioning import partition_of
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


def test_the_tombstone_is_folded_and_what_stays_and_waits_is_said(played: Any) -> None:
    done = forgotten(played)
    assert (done.folded, done.places) == (True, ((0, 6),))
    assert played[2].steps[-1].counts["forgotten"] == 1
    text = done.as_text()
    assert CANARY not in text
    for said in ("noise", "allowance", "contexts: 7 days", "clicks: 7 days", "sent as null within 10 s"):
        assert said in text


def test_without_a_learner_it_is_said_that_nobody_has_folded_it(played: Any) -> None:
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
def test_what_cannot_be_a_user_is_refused_without_being_repeated(played: Any, user: str) -> None:
    with pytest.raises(HushstreamError, match=f"^user: expected 1 to 128 bytes, got {len(user)}$"):
        asyncio.run(forget_async(DirectEventLog(played[1], played[2], 1), played[0], user, 1.0))


def test_verify_finds_a_log_with_a_tombstone_equal(played: Any) -> None:
    forgotten(played)
    system, log, _ = played
    found = verify(LogCopy.of(log), system, KEYS)
    assert found.ok
    assert not found.findings


def test_verify_says_of_an_erased_export_that_it_is_erased_and_not_changed(played: Any, tmp_path: Path) -> None:
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


def test_no_sealed_state_of_an_erased_export_can_be_opened_again(played: Any, tmp_path: Path) -> None:
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


def test_what_they_wrote_after_the_tombstone_stays_until_the_next(played: Any, tmp_path: Path, rigs: Any) -> None:
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


def test_values_taken_out_without_a_tombstone_after_them_are_a_change(played: Any) -> None:
    system, log, _ = played
    copy = LogCopy.of(log)
    part = copy.part(("contexts", 0))
    records = [part.records[0]._replace(value=ERASED), *part.records[1:]]
    cut = LogCopy({**copy.parts, ("contexts", 0): PartitionCopy(part.low, part.high, records)})
    found = verify(cut, system, KEYS)
    assert found.totals[Status.CHANGED] > 0
    assert not found.totals[Status.ERASED]
    assert "no tombstone says why" in str(found.findings[0])


def test_a_value_changed_beside_an_erasure_is_still_a_change(played: Any, tmp_path: Path) -> None:
    forgotten(played)
    system, log, _ = played
    copy = LogCopy.of(log)
    part = copy.part(("contexts", 0))
    altered = bytearray(part.records[1].value)
    altered[-1] ^= 1
    records = [part.records[0], part.records[1]._replace(value=bytes(altered)), *part.records[2:]]
    cut = LogCopy({**copy.parts, ("contexts", 0): PartitionCopy(part.low, part.high, records)})
    assert verify(cut, system, KEYS).totals[Status.CHANGED] > 0


def test_an_export_without_their_tombstone_is_left_as_it_is(played: Any, tmp_path: Path) -> None:
    system, log, _ = played
    export_copy(LogCopy.of(log), system, tmp_path / "copy")
    with pytest.raises(ExportRefused, match="expected an export made after `hushstream forget`"):
        erase_export(tmp_path / "copy", system, CANARY)
    assert verify_export(tmp_path / "copy", system, KEYS).ok
