"""The journal's writer: who appended first, what stands on the log, what a commit says, who may hold a partition."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber, RequestTimedOutError

from hushstream.agents.datadir import Seat
from hushstream.agents.errors import JournalLost, WorkerError
from hushstream.agents.kafka.administration import journal_name, pack_mark, read_mark
from hushstream.agents.recovery.journal import Append, JournalWriter, settle
from hushstream.engine.records import Output


class Acknowledged(NamedTuple):
    offset: int


@dataclass
class Log:
    """A real ordered log in memory, to which others may append as well."""

    values: list[bytes] = field(default_factory=list)
    failing: KafkaError | None = None

    async def send(self, output: Output) -> Awaitable[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.failing is not None:
            future.set_exception(self.failing)
        else:
            self.values.append(output.value)
            future.set_result(Acknowledged(len(self.values) - 1))
        return future

    async def tail(self, offset: int) -> list[tuple[int, bytes]]:
        return list(enumerate(self.values))[offset:]


def sequence_of(value: bytes) -> int | None:
    return int(value.split(b"-")[0]) if value[:1].isdigit() else None


def writer(log: Log) -> JournalWriter:
    return JournalWriter(log, ("journal", 0), len(log.values), log.tail, sequence_of)


async def test_appends_alone_on_the_log_are_confirmed_at_their_offsets():
    log = Log([b"0-genesis"])
    journal = writer(log)
    appends = [await journal.append(b"%d-ours" % n, n) for n in (1, 2, 3)]
    assert [await journal.confirm(a) for a in appends] == [1, 2, 3]


async def test_a_stale_record_of_a_zombie_is_stepped_over():
    log = Log([b"0-genesis", b"1-ours", b"2-ours"])
    journal = writer(log)
    log.values.append(b"1-zombie")
    appends = [await journal.append(b"%d-ours" % n, n) for n in (3, 4)]
    assert [await journal.confirm(a) for a in appends] == [4, 5]
    assert journal.next_offset == 6
    assert await journal.confirm(await journal.append(b"5-ours", 5)) == 6


async def test_noise_that_is_no_journal_record_is_stepped_over():
    log = Log([b"0-genesis"])
    journal = writer(log)
    log.values.append(b"not a record")
    assert await journal.confirm(await journal.append(b"1-ours", 1)) == 2


async def test_whoever_appended_the_same_sequence_first_has_won():
    log = Log([b"0-genesis"])
    journal = writer(log)
    log.values.append(b"1-theirs")
    append = await journal.append(b"1-ours", 1)
    with pytest.raises(JournalLost, match="sequence 1 at offset 1"):
        await journal.confirm(append)


async def test_what_was_confirmed_before_a_foreign_record_stays_confirmed():
    log = Log([b"0-genesis"])
    journal = writer(log)
    first = await journal.append(b"1-ours", 1)
    log.values.append(b"2-theirs")
    second = await journal.append(b"2-ours", 2)
    assert await journal.confirm(first) == 1
    with pytest.raises(JournalLost):
        await journal.confirm(second)


async def test_an_owner_that_wakes_when_the_next_has_made_the_same_record_and_gone_on_has_lost_the_journal():
    """Their record counts, as it has the same bytes; but the next one stands already, and none of theirs may follow."""
    log = Log([b"0-genesis", b"1-ours"])
    journal = writer(log)
    log.values += [b"2-same", b"3-theirs", b"4-theirs"]
    append = await journal.append(b"2-same", 2)
    with pytest.raises(JournalLost, match="sequence 3 at offset 3"):
        await journal.confirm(append)


async def test_the_same_record_by_another_who_went_no_further_counts_once():
    log = Log([b"0-genesis", b"1-ours"])
    journal = writer(log)
    log.values += [b"2-same", b"1-zombie"]
    append = await journal.append(b"2-same", 2)
    assert await journal.confirm(append) == 2
    assert await journal.confirm(await journal.append(b"3-ours", 3)) == 5


async def test_a_failed_append_loses_the_partition():
    log = Log([b"0-genesis"], failing=RequestTimedOutError())
    journal = writer(log)
    append = await journal.append(b"1-ours", 1)
    with pytest.raises(JournalLost, match="RequestTimedOutError"):
        await journal.confirm(append)


async def test_a_producer_that_the_broker_hears_no_more_ends_the_worker():
    log = Log([b"0-genesis"], failing=OutOfOrderSequenceNumber())
    journal = writer(log)
    append = await journal.append(b"1-ours", 1)
    with pytest.raises(WorkerError, match=r"appending sequence 1: .*start this worker again"):
        await journal.confirm(append)


async def test_an_acknowledged_record_that_is_not_there_is_not_trusted():
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    append = Append(b"1-ours", 1, 1, future)
    with pytest.raises(JournalLost, match="not in the journal"):
        settle([(1, b"9-else")], [append], sequence_of)


async def test_what_somebody_else_appends_behind_an_idle_owner_is_met_once_and_stepped_over():
    log = Log([b"0-genesis"])
    journal = writer(log)
    assert await journal.read_others(log.tail, lambda: 1) == []
    log.values += [b"nobody", b"nobody"]
    assert await journal.read_others(log.tail, lambda: 1) == [(1, b"nobody"), (2, b"nobody")]
    assert await journal.read_others(log.tail, lambda: 1) == []
    assert await journal.confirm(await journal.append(b"1-ours", 1)) == 3


async def test_an_idle_owner_that_finds_the_next_record_there_reloads():
    log = Log([b"0-genesis", b"1-another owner's"])
    journal = JournalWriter(log, ("journal", 0), 1, log.tail, sequence_of)
    with pytest.raises(JournalLost, match="another writer appended sequence 1 at offset 1"):
        await journal.read_others(log.tail, lambda: 1)


async def test_an_owner_with_records_on_their_way_does_not_look():
    log = Log([b"0-genesis"])
    journal = writer(log)
    sent = await journal.append(b"1-ours", 1)
    assert await journal.read_others(log.tail, lambda: 2) == []
    assert await journal.confirm(sent) == 1


def test_a_mark_is_read_back():
    name = journal_name(b"genesis")
    assert read_mark(pack_mark(name, 41), name) == 41


def test_a_mark_of_another_journal_is_worth_nothing():
    assert read_mark(pack_mark(journal_name(b"old"), 41), journal_name(b"new")) == 0


@pytest.mark.parametrize("metadata", [None, "", "x", "hushstream/1 n", "hushstream/1 n -3", "hushstream/2 n 3"])
def test_metadata_of_others_means_that_everything_is_sent_again(metadata):
    assert read_mark(metadata, "n") == 0


TAKE = """
import sys, time
from pathlib import Path
from hushstream.agents.datadir import Seat
seat = Seat(Path(sys.argv[1]), "g")
print(seat.instance, flush=True)
time.sleep(60)
"""


def test_who_starts_again_has_its_id_however_often(tmp_path):
    found = set()
    for _ in range(4):
        seat = Seat(tmp_path, "g")
        found.add(seat.instance)
        seat.leave()
    assert len(found) == 1


def test_workers_that_share_a_folder_have_an_id_each_and_groups_have_their_own(tmp_path):
    seats = [Seat(tmp_path, "g"), Seat(tmp_path, "g"), Seat(tmp_path, "h")]
    assert len({seat.instance for seat in seats}) == 3
    for seat in seats:
        seat.leave()


def test_the_id_of_a_killed_process_is_free_and_not_before(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", TAKE, str(tmp_path)], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        instance = process.stdout.readline().strip()
        beside = Seat(tmp_path, "g")
        assert beside.instance != instance
        beside.leave()
        process.kill()
        process.wait()
    again = Seat(tmp_path, "g")
    assert again.instance == instance
    again.leave()


def test_another_machine_has_ids_of_its_own(tmp_path, monkeypatch):
    here = Seat(tmp_path, "g")
    here.leave()
    monkeypatch.setattr("socket.gethostname", lambda: "far")
    there = Seat(tmp_path, "g")
    assert there.instance != here.instance
    there.leave()


def test_the_file_is_its_owners_alone(tmp_path):
    seat = Seat(tmp_path, "g")
    (path,) = tmp_path.rglob("*.member")
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    seat.leave()


# A journal begins with random bytes that no other journal has: noise of one world is never met in another.

PARTITIONS = 3


def deployment(bench: Any, harness: Any, machines: Any, name: str) -> Any:
    logs = {("events", partition): [(1_000_000, b"k1")] for partition in range(PARTITIONS)}
    factory, arguments = f"{machines.__file__}:counting", {"targets": PARTITIONS}
    making = machines.counting(**arguments)
    made = harness.Deployment(bench, name, factory, arguments, making, logs, PARTITIONS, harness.CALM)
    made.with_genesis = False
    return made


@pytest.mark.asyncio(loop_scope="module")
async def test_every_journal_begins_with_a_nonce_of_its_own(bench, harness, machines):
    """By partition and by deployment: one that is wiped and begun again is another deployment to a worker."""
    nonces = []
    for name in ("one", "two"):
        async with deployment(bench, harness, machines, name) as made:
            await made.finish()
            for partition in range(PARTITIONS):
                genesis, *_ = await made.values_of(("journal-counting", partition))
                nonces.append(bytes.fromhex(json.loads(genesis)[4]))
    assert all(len(nonce) == 32 for nonce in nonces)
    assert len(set(nonces)) == 2 * PARTITIONS
