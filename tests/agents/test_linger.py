"""What has arrived waits for others at a pace that brings them, for a bounded time, and clicks move no cut.

Each test sets the clock, and holds whenever that began: moments are sums of floats, and how these are rounded follows
from the uptime.
"""

from __future__ import annotations

import asyncio

import pytest

from hushstream.agents.kafka.intake import InputBuffer
from hushstream.agents.partition.linger import Linger
from hushstream.engine.records import InputRecord

WAIT = 0.005
VALUE = b"x" * 100
ROUNDED = 1e-5
"""Seconds: above the roundings of a clock that began 2**33 seconds ago, and far below a wait."""


class Scene:
    """One partition's buffers under a clock that the test sets."""

    def __init__(self, now: float, wait_seconds: float = WAIT) -> None:
        self.contexts, self.clicks = (InputBuffer((topic, 0), 0, 1000, 1 << 20) for topic in ("contexts", "clicks"))
        for buffer in (self.contexts, self.clicks):
            buffer.sought()
        self.now = now
        self.linger = Linger(self.contexts, (self.contexts, self.clicks), wait_seconds, now)

    def comes(self, buffer: InputBuffer, after_seconds: float = 0.0, count: int = 1, value: bytes = VALUE) -> None:
        self.now += after_seconds
        first = buffer.next_offset
        assert buffer.offer([InputRecord(first + number, 0, value) for number in range(count)])
        self.linger.arrived(self.now)

    def fold(self) -> None:
        for buffer in (self.contexts, self.clicks):
            buffer.advance(buffer.next_offset)
        self.linger.folded()

    def left(self, after_seconds: float = 0.0) -> float:
        return self.linger.seconds_left(self.now + after_seconds)

    def at_pace(self, gap_seconds: float, count: int = 64) -> Scene:
        for _ in range(count):
            self.comes(self.contexts, gap_seconds)
            self.fold()
        return self


def test_a_context_waits_from_its_arrival_on_where_another_can_be_expected(base: float) -> None:
    scene = Scene(base).at_pace(WAIT / 2)
    assert scene.left() == 0.0, "nothing waits"
    scene.comes(scene.contexts, WAIT / 2)
    assert scene.left() == pytest.approx(WAIT, abs=ROUNDED)
    scene.comes(scene.contexts, WAIT / 2)
    assert scene.left() == pytest.approx(WAIT / 2, abs=ROUNDED), "one that joins it prolongs nothing"
    assert scene.left(WAIT / 2) == pytest.approx(0.0, abs=ROUNDED)
    assert scene.left(WAIT) == 0.0


def test_nobody_waits_at_a_pace_that_would_bring_nothing(base: float) -> None:
    scene = Scene(base).at_pace(2 * WAIT)
    scene.comes(scene.contexts, 2 * WAIT)
    assert scene.left() == 0.0


def test_a_pace_is_found_again_soon_after_a_long_pause(base: float) -> None:
    scene = Scene(base).at_pace(WAIT / 2)
    scene.at_pace(3600.0, count=1).at_pace(WAIT / 2, count=16)
    scene.comes(scene.contexts, WAIT / 2)
    assert scene.left() > 0


@pytest.mark.parametrize(("count", "value"), [(16, VALUE), (1, b"x" * 5000)], ids=["records", "columnar"])
def test_nothing_waits_once_there_is_enough(count: int, value: bytes, base: float) -> None:
    scene = Scene(base).at_pace(WAIT / 2)
    scene.comes(scene.contexts, 0.0, count, value)
    assert scene.left() == 0.0


def test_clicks_end_no_wait_and_prolong_none(base: float) -> None:
    scene, other = (Scene(base).at_pace(WAIT / 2) for _ in range(2))
    for one in (scene, other):
        one.comes(one.contexts, WAIT / 2)
    scene.comes(scene.clicks, WAIT / 4, count=200)
    assert scene.left() == pytest.approx(other.left(WAIT / 4), abs=ROUNDED)


def test_clicks_that_came_first_wait_for_a_context_and_then_as_long_as_it(base: float) -> None:
    scene = Scene(base).at_pace(WAIT / 2)
    scene.comes(scene.clicks, WAIT / 2)
    assert scene.left(WAIT) > 0
    scene.comes(scene.contexts, WAIT / 2)
    assert scene.left() == pytest.approx(WAIT, abs=ROUNDED)


def test_clicks_are_folded_where_no_context_comes_any_more(base: float) -> None:
    scene = Scene(base).at_pace(WAIT / 2)
    scene.comes(scene.clicks, 1.0)
    assert scene.left() == 0.0


def test_what_a_fold_left_over_does_not_wait_again(base: float) -> None:
    scene = Scene(base).at_pace(WAIT / 2)
    scene.comes(scene.contexts, WAIT / 2, count=2)
    scene.contexts.advance(scene.contexts.low + 1)
    scene.linger.folded()
    assert scene.left(WAIT) == 0.0


def test_without_a_wait_every_arrival_is_folded_at_once(base: float) -> None:
    scene = Scene(base, 0.0).at_pace(0.0)
    scene.comes(scene.contexts)
    assert scene.left() == 0.0


def test_a_wait_ends_with_what_makes_it_enough(base: float) -> None:
    async def waited() -> bool:
        scene = Scene(base, wait_seconds=600.0).at_pace(1.0)
        scene.comes(scene.contexts)
        event = asyncio.Event()
        waiting = asyncio.create_task(scene.linger.until_enough(event, lambda: scene.now))
        await asyncio.sleep(0)
        early = waiting.done()
        scene.comes(scene.contexts, count=15)
        event.set()
        await asyncio.wait_for(waiting, 60)
        return early

    assert not asyncio.run(waited())
