"""Appends that share batches, and answers that several wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from hushstream.client.logs.linger import Linger, Wait
from hushstream.client.waiting import Awaited
from hushstream.schemas.errors import HushstreamError


class _Log:
    """Takes up to three values at a time, when the test lets it."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.values: list[bytes] = []
        self.asked, self.free = asyncio.Event(), asyncio.Event()
        self.refusal: Exception | None = None

    async def send(self, values: Sequence[bytes]) -> tuple[int, int]:
        taken = list(values[:3])
        self.batches.append(taken)
        self.asked.set()
        await self.free.wait()
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        base = len(self.values)
        self.values += taken
        return len(taken), base


async def test_what_comes_while_a_batch_is_under_way_makes_the_next_and_each_has_its_own_offset() -> None:
    log = _Log()
    linger = Linger(log.send, 0.0)
    first = linger.append(b"0")
    await log.asked.wait()
    others = [linger.append(b"%d" % number) for number in range(1, 6)]
    await asyncio.sleep(0)
    assert log.batches == [[b"0"]]
    log.free.set()
    offsets = await asyncio.wait_for(asyncio.gather(first, *others), 60)
    assert log.batches == [[b"0"], [b"1", b"2", b"3"], [b"4", b"5"]]
    assert [log.values[offset] for offset in offsets] == [b"%d" % number for number in range(6)]


async def test_what_is_refused_is_told_to_its_batch_alone_and_what_is_cancelled_to_nobody() -> None:
    log = _Log()
    linger = Linger(log.send, 0.0)
    refused = [linger.append(b"0"), linger.append(b"1")]
    await log.asked.wait()
    log.refusal = HushstreamError("the log is full")
    gone, later = linger.append(b"2"), linger.append(b"3")
    gone.cancel()
    log.free.set()
    for one in refused:
        with pytest.raises(HushstreamError, match="full"):
            await one
    assert await later == 1
    assert log.values == [b"2", b"3"]
    await linger.flush()


async def test_a_record_waits_for_others_as_long_as_was_said() -> None:
    log = _Log()
    log.free.set()
    linger = Linger(log.send, 3600.0)
    waiting = [linger.append(b"0"), linger.append(b"1")]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not log.batches
    assert not any(one.done() for one in waiting)


def test_records_wait_twice_as_long_while_many_come() -> None:
    wait, now = Wait(0.005), 1000.0
    for records, expected in ((2, 0.005), (8, 0.01), (2, 0.005)):
        for _ in range(50):
            now += 0.005
            wait.sent(records, now)
        assert wait.seconds == expected


async def test_who_goes_away_takes_the_answer_from_nobody() -> None:
    answer: Awaited[int] = Awaited()
    with pytest.raises(TimeoutError):
        answer.result()
    patient = [asyncio.create_task(answer.within(None)) for _ in range(2)]
    gone = asyncio.create_task(answer.within(None))
    with pytest.raises(TimeoutError):
        await answer.within(0.01)
    gone.cancel()
    answer.give(7)  # Before the one who goes away has noticed.
    await asyncio.wait((gone,))
    answer.fail(HushstreamError("too late"))
    assert gone.cancelled()
    assert [await one for one in patient] == [7, 7]
    assert answer.result() == await answer.within(0.0) == 7


async def test_what_fails_is_told_to_all_who_wait() -> None:
    answer: Awaited[int] = Awaited()
    waiting = [asyncio.create_task(answer.within(None)) for _ in range(2)]
    await asyncio.sleep(0)
    answer.fail(HushstreamError("refused"))
    for one in waiting:
        with pytest.raises(HushstreamError, match="refused"):
            await one
