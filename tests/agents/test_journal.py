from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber, RequestTimedOutError

from hushstream.agents.errors import JournalLost, WorkerError
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


async def test_appends_alone_on_the_log_are_confirmed_at_their_offsets() -> None:
    log = Log([b"0-genesis"])
    journal = writer(log)
    appends = [await journal.append(b"%d-ours" % n, n) for n in (1, 2, 3)]
    assert [await journal.confirm(a) for a in appends] == [1, 2, 3]


async def test_a_stale_record_of_a_zombie_is_stepped_over() -> None:
    log = Log([b"0-genesis", b"1-ours", b"2-ours"])
    journal = writer(log)
    log.values.append(b"1-zombie")
    appends = [await journal.append(b"%d-ours" % n, n) for n in (3, 4)]
    assert [await journal.confirm(a) for a in appends] == [4, 5]
    assert journal.next_offset == 6
    assert await journal.confirm(await journal.append(b"5-ours", 5)) == 6


async def test_noise_that_is_no_journal_record_is_stepped_over() -> None:
    log = Log([b"0-genesis"])
    journal = writer(log)
    log.values.append(b"not a record")
    assert await journal.confirm(await journal.append(b"1-ours", 1)) == 2


async def test_whoever_appended_the_same_sequence_first_has_won() -> None:
    log = Log([b"0-genesis"])
    journal = writer(log)
    log.values.append(b"1-theirs")
    append = await journal.append(b"1-ours", 1)
    with pytest.raises(JournalLost, match="sequence 1 at offset 1"):
        await journal.confirm(append)


async def test_what_was_confirmed_before_a_foreign_record_stays_confirmed() -> None:
    log = Log([b"0-genesis"])
    journal = writer(log)
    first = await journal.append(b"1-ours", 1)
    log.values.append(b"2-theirs")
    second = await journal.append(b"2-ours", 2)
    assert await journal.confirm(first) == 1
    with pytest.raises(JournalLost):
        await journal.confirm(second)


async def test_an_owner_that_wakes_when_the_next_has_made_the_same_record_and_gone_on_has_lost_the_journal() -> None:
    """Their record counts, as it has the same bytes; but the next one stands already, and none of theirs may follow."""
    log = Log([b"0-genesis", b"1-ours"])
    journal = writer(log)
    log.values += [b"2-same", b"3-theirs", b"4-theirs"]
    append = await journal.append(b"2-same", 2)
    with pytest.raises(JournalLost, match="sequence 3 at offset 3"):
        await journal.confirm(append)


async def test_the_same_record_by_another_who_went_no_further_counts_once() -> None:
    log = Log([b"0-genesis", b"1-ours"])
    journal = writer(log)
    log.values += [b"2-same", b"1-zombie"]
    append = await journal.append(b"2-same", 2)
    assert await journal.confirm(append) == 2
    assert await journal.confirm(await journal.append(b"3-ours", 3)) == 5


async def test_a_failed_append_loses_the_partition() -> None:
    log = Log([b"0-genesis"], failing=RequestTimedOutError())
    journal = writer(log)
    append = await journal.append(b"1-ours", 1)
    with pytest.raises(JournalLost, match="RequestTimedOutError"):
        await journal.confirm(append)


async def test_a_producer_that_the_broker_hears_no_more_ends_the_worker() -> None:
    log = Log([b"0-genesis"], failing=OutOfOrderSequenceNumber())
    journal = writer(log)
    append = await journal.append(b"1-ours", 1)
    with pytest.raises(WorkerError, match=r"appending sequence 1: .*start this worker again"):
        await journal.confirm(append)


async def test_an_acknowledged_record_that_is_not_there_is_not_trusted() -> None:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    append = Append(b"1-ours", 1, 1, future)
    with pytest.raises(JournalLost, match="not in the journal"):
        settle([(1, b"9-else")], [append], sequence_of)


async def test_what_somebody_else_appends_behind_an_idle_owner_is_met_once_and_stepped_over() -> None:
    log = Log([b"0-genesis"])
    journal = writer(log)
    assert await journal.read_others(log.tail, lambda: 1) == []
    log.values += [b"nobody", b"nobody"]
    assert await journal.read_others(log.tail, lambda: 1) == [(1, b"nobody"), (2, b"nobody")]
    assert await journal.read_others(log.tail, lambda: 1) == []
    assert await journal.confirm(await journal.append(b"1-ours", 1)) == 3


async def test_an_idle_owner_that_finds_the_next_record_there_reloads() -> None:
    log = Log([b"0-genesis", b"1-another owner's"])
    journal = JournalWriter(log, ("journal", 0), 1, log.tail, sequence_of)
    with pytest.raises(JournalLost, match="another writer appended sequence 1 at offset 1"):
        await journal.read_others(log.tail, lambda: 1)


async def test_an_owner_with_records_on_their_way_does_not_look() -> None:
    log = Log([b"0-genesis"])
    journal = writer(log)
    sent = await journal.append(b"1-ours", 1)
    assert await journal.read_others(log.tail, lambda: 2) == []
    assert await journal.confirm(sent) == 1
