"""Records on their way into a fold: buffers of fetches, how batches are cut by log time, and how long one waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.agents.kafka.intake import InputBuffer, Intake
from hushstream.agents.observe.metrics import Labels, Metrics
from hushstream.agents.partition.driver import PartitionDriver, Tools
from hushstream.agents.partition.schedule import FixedSchedule, Linger, LiveSchedule
from hushstream.agents.recovery.snapshots import RecoveredMachine, SnapshotStore
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.records import Awaited, InputRecord, InputSlice, Output, TopicPartition
from hushstream.schemas.errors import HushstreamError
from patience import Patience
from storage import KEYS

SOURCE = ("events", 0)


def records(*offsets: int, size: int = 1) -> list[InputRecord]:
    return [InputRecord(offset, 1000 + offset, b"x" * size) for offset in offsets]


def buffer(position: int = 0, limit_records: int = 100, limit_bytes: int = 10_000) -> InputBuffer:
    made = InputBuffer(SOURCE, position, limit_records, limit_bytes)
    made.sought()
    return made


def test_records_come_out_as_one_slice_from_the_position_on():
    made = buffer(5)
    assert made.offer(records(5, 6, 7))
    assert made.slice(10, 10_000) == InputSlice("events", 0, 5, 8, tuple(records(5, 6, 7)))


def test_records_seen_before_are_dropped():
    made = buffer(5)
    assert made.offer(records(3, 4, 5, 6))
    assert made.offer(records(5, 6))
    assert [r.offset for r in made.peek()] == [5, 6]


def test_the_rest_of_an_older_fetch_asks_for_a_seek_and_loses_nothing():
    made = buffer(5)
    assert not made.offer(records(9, 10))
    assert made.wants_seek
    assert made.offer(records(11)), "until the seek is done everything is ignored"
    made.sought()
    assert made.offer(records(5, 6, 7, 8, 9))
    assert [r.offset for r in made.peek()] == [5, 6, 7, 8, 9]


def test_a_hole_that_is_seen_again_after_the_seek_is_real():
    made = buffer(5)
    assert not made.offer(records(9, 10))
    made.sought()
    assert made.offer(records(9, 10))
    assert made.slice(10, 10_000) == InputSlice("events", 0, 5, 11, tuple(records(9, 10)))


def test_before_the_first_seek_only_a_fetch_with_the_expected_record_is_taken():
    made = InputBuffer(SOURCE, 3, 10, 100)
    assert made.offer(records(0, 1))
    assert made.offer(records(4, 5))
    assert len(made) == 0
    assert made.offer(records(2, 3, 4))
    assert [r.offset for r in made.peek()] == [3, 4]
    assert made.wants_seek, "what was fetched before may be of an older seek"


def test_slices_are_cut_by_records_and_by_bytes_but_never_empty():
    made = buffer()
    made.offer(records(0, 1, 2, 3, size=100))
    by_count = made.slice(2, 10_000)
    by_bytes = made.slice(10, 250)
    one = made.slice(10, 5)
    assert by_count is not None
    assert by_bytes is not None
    assert one is not None
    assert (by_count.high, by_bytes.high, one.high) == (2, 2, 1)


def test_bytes_are_bounded_too():
    made = buffer(limit_bytes=250)
    made.offer(records(0, 1, 2, size=100))
    assert made.full
    made.advance(1)
    assert not made.full


def test_folded_records_are_forgotten():
    made = buffer()
    made.offer(records(0, 1, 2))
    made.advance(2)
    assert made.low == 2
    assert [r.offset for r in made.peek()] == [2]
    made.advance(1)
    assert made.low == 2


def fetched(*offsets: int) -> list[Any]:
    """Records as the client gives them."""
    return [SimpleNamespace(offset=r.offset, timestamp=r.timestamp_ms, value=r.value) for r in records(*offsets)]


class Consumer:
    """Stands for the app's consumer, and for its thread: notes what it was asked for."""

    def __init__(self, earliest: int = 0) -> None:
        self.thread = self
        self.paused: set[TP] = set()
        self.sought: list[dict[TP, int]] = []
        self.earliest = earliest

    def pause(self, place: TP, paused: bool) -> None:
        (self.paused.add if paused else self.paused.discard)(place)

    def assignment(self) -> set[TP]:
        return {LEFT, RIGHT}

    async def seek_wait(self, places: dict[TP, int]) -> None:
        self.sought.append(places)

    async def earliest_offsets(self, *places: TP) -> dict[TP, int]:
        return dict.fromkeys(places, self.earliest)


LEFT, RIGHT = TP("p.left", 0), TP("p.right", 0)


def an_intake(**buffers: InputBuffer) -> tuple[Intake, Any]:
    intake, app = Intake(), SimpleNamespace(consumer=Consumer(), rebalancing=False)
    intake.use(app)
    intake.attach({(f"p.{name}", 0): made for name, made in buffers.items()})
    return intake, app


@asynccontextmanager
async def seeking(intake: Intake) -> AsyncIterator[None]:
    task = asyncio.create_task(intake.run())
    await asyncio.sleep(0.05)
    yield
    task.cancel()


async def test_a_partition_whose_buffer_is_full_is_fetched_no_further_until_it_is_half_empty():
    full, other = buffer(limit_records=4), buffer()
    intake, app = an_intake(left=full, right=other)
    intake.take(LEFT, fetched(0, 1, 2, 3))
    assert app.consumer.paused == {LEFT}
    intake.take(LEFT, fetched(4))
    assert full.next_offset == 5, "what was on its way is kept"
    full.advance(2)
    intake.notify_capacity()
    assert app.consumer.paused == {LEFT}
    full.advance(3)
    intake.notify_capacity()
    assert not app.consumer.paused


async def test_what_comes_before_its_partition_is_recovered_is_dropped_and_fetched_again():
    intake, app = an_intake()
    intake.take(LEFT, fetched(0, 1))
    assert app.consumer.paused == {LEFT}, "nobody reads on where nobody folds"
    made = InputBuffer(SOURCE, 0, 10, 100)
    intake.attach({LEFT: made})
    assert not app.consumer.paused
    intake.take(LEFT, fetched(2, 3))
    async with seeking(intake):
        assert app.consumer.sought == [{LEFT: 0}]
        intake.take(LEFT, fetched(0, 1))
    assert [r.offset for r in made.peek()] == [0, 1]


async def test_a_partition_is_sought_after_the_rebalance_as_faust_seeks_at_its_end_too():
    intake, app = an_intake(left=InputBuffer(SOURCE, 7, 10, 100))
    app.rebalancing = True
    async with seeking(intake):
        assert not app.consumer.sought
        app.rebalancing = False
        await asyncio.sleep(0.1)
        assert app.consumer.sought == [{LEFT: 7}]


async def test_records_that_were_deleted_unread_end_the_partition_with_a_clear_error():
    made = buffer(5)
    errors: list[HushstreamError] = []
    made.failed = errors.append
    intake, app = an_intake(left=made)
    app.consumer.earliest = 9
    async with seeking(intake):
        intake.take(LEFT, fetched(9, 10))
        await asyncio.sleep(0.05)
    assert [str(error) for error in errors] == ["events/0: must be read from offset 5, but the log begins at 9"]
    assert len(made) == 0


async def test_a_gap_that_is_there_after_a_seek_is_one_of_the_log_itself():
    made = buffer(5)
    intake, app = an_intake(left=made)
    async with seeking(intake):
        intake.take(LEFT, fetched(9, 10))
        await asyncio.sleep(0.05)
        assert app.consumer.sought == [{LEFT: 5}]
        intake.take(LEFT, fetched(9, 10))
    assert [r.offset for r in made.peek()] == [9, 10]


LEAD, LEFT_SIDE, RIGHT_SIDE = ("lead", 0), ("left", 0), ("right", 0)
UNKNOWN = 1 << 62


def timed_buffer(source: tuple[str, int], times: Sequence[int], start: int = 0) -> InputBuffer:
    made = InputBuffer(source, start, 1000, 1 << 20)
    made.sought()
    made.offer([InputRecord(start + i, time, b"v") for i, time in enumerate(times)])
    return made


def ranges(slices: Sequence[InputSlice]) -> list[tuple[str, int, int]]:
    return [(s.topic, s.low, s.high) for s in slices]


def live(buffers: Sequence[InputBuffer], records: int = 2, ends: Mapping[tuple[str, int], int] | None = None):
    known = ends or {}
    return LiveSchedule(buffers, (LEAD, RIGHT_SIDE), lambda source: known.get(source, 0), records, 1 << 20)


def fold(schedule: LiveSchedule | FixedSchedule, buffers: Sequence[InputBuffer]) -> list[tuple[str, int, int]]:
    """Take the next batch as a machine does that is ready for all of it."""
    batch = schedule.next_batch()
    for part in batch:
        next(b for b in buffers if b.source == (part.topic, part.partition)).advance(part.high)
    if batch:
        schedule.folded()
    return ranges(batch)


# Live.


def test_live_takes_what_has_arrived():
    schedule = live([timed_buffer(LEAD, [1, 2, 3]), timed_buffer(RIGHT_SIDE, [])])
    assert ranges(schedule.next_batch()) == [("lead", 0, 2)]


def test_live_takes_the_leading_log_only_as_far_as_a_log_of_which_more_waits():
    buffers = [timed_buffer(LEAD, [3, 4, 7, 8]), timed_buffer(RIGHT_SIDE, [1, 2, 5, 5, 6])]
    schedule = live(buffers, 3)
    assert fold(schedule, buffers) == [("lead", 0, 2), ("right", 0, 3)]
    assert fold(schedule, buffers) == [("lead", 2, 4), ("right", 3, 5)]


def test_live_waits_for_what_it_knows_to_be_in_another_log_and_not_for_what_may_come():
    lead, right = timed_buffer(LEAD, [3, 4]), timed_buffer(RIGHT_SIDE, [])
    assert ranges(live([lead, right], 9, {RIGHT_SIDE: 1}).next_batch()) == []
    assert ranges(live([lead, right], 9, {RIGHT_SIDE: UNKNOWN}).next_batch()) == []
    assert ranges(live([lead, right], 9, {RIGHT_SIDE: 0}).next_batch()) == [("lead", 0, 2)]
    right.offer([InputRecord(0, 4, b"v")])
    assert ranges(live([lead, right], 9, {RIGHT_SIDE: 2}).next_batch()) == [("lead", 0, 1), ("right", 0, 1)]


def test_live_does_not_wait_for_records_that_are_lost_at_the_end_of_another_log():
    """Clicks were deleted, an operator accepted that, and no click came: contexts waited for ever, as a click follows
    a decision."""
    lead, right = timed_buffer(LEAD, [3, 4]), InputBuffer(RIGHT_SIDE, 50, 1000, 1 << 20, begins=51)
    right.sought()
    assert ranges(live([lead, right], 9, {RIGHT_SIDE: 51}).next_batch()) == [("lead", 0, 2)]
    assert ranges(live([lead, right], 9, {RIGHT_SIDE: 52}).next_batch()) == [], "a record behind them is there"
    right.offer([InputRecord(51, 2, b"v")])
    assert ranges(live([lead, right], 9, {RIGHT_SIDE: 52}).next_batch()) == [("lead", 0, 2), ("right", 50, 52)]


def test_live_takes_an_awaited_log_beyond_the_leading_one_as_far_as_the_record_that_it_waits_for():
    lead, left, right = (
        timed_buffer(LEAD, [1, 2, 2, 9]),
        timed_buffer(LEFT_SIDE, [3]),
        timed_buffer(RIGHT_SIDE, [3, 4, 4]),
    )
    schedule = live([lead, left, right], 3)
    assert ranges(schedule.next_batch()) == [("lead", 0, 3)]
    awaited = Awaited(0, RIGHT_SIDE, 1, 99)
    assert schedule.held_back(awaited)
    assert ranges(schedule.next_batch()) == [("lead", 0, 3), ("right", 0, 2)]
    assert not schedule.held_back(awaited), "no more of it is wanted"
    schedule.folded()
    assert ranges(schedule.next_batch()) == [("lead", 0, 3)]


def test_live_takes_an_awaited_log_no_further_than_to_a_record_that_is_too_late():
    schedule = live([timed_buffer(LEAD, [1, 2, 2, 9]), timed_buffer(RIGHT_SIDE, [3, 7, 8])], 3)
    schedule.next_batch()
    assert schedule.held_back(Awaited(0, RIGHT_SIDE, 10**9, 6))
    assert ranges(schedule.next_batch())[1:] == [("right", 0, 2)]


def test_live_offers_nothing_more_to_what_waits_for_nothing_or_for_what_has_not_come():
    schedule = live([timed_buffer(LEAD, [1, 9]), timed_buffer(RIGHT_SIDE, [3])], 9)
    schedule.next_batch()
    assert not schedule.held_back(None)
    whole = live([timed_buffer(LEAD, [4]), timed_buffer(RIGHT_SIDE, [3])], 9)
    whole.next_batch()
    assert not whole.held_back(Awaited(0, RIGHT_SIDE, 7, 99))


TIMES = st.lists(st.integers(0, 9), max_size=12)


@settings(max_examples=200, deadline=None)
@given(lead=TIMES, left=TIMES, right=TIMES, records=st.integers(1, 5))
def test_live_comes_to_the_end_and_never_takes_what_comes_after_something_left(lead, left, right, records):
    logs = {LEAD: lead, LEFT_SIDE: left, RIGHT_SIDE: right}
    keys = {source: _order_keys(source, times) for source, times in logs.items()}
    buffers = [timed_buffer(source, times) for source, times in logs.items()]
    schedule = live(buffers, records)
    while batch := fold(schedule, buffers):
        taken = [keys[topic, 0][high - 1] for topic, _, high in batch]
        left_over = [keys[b.source][b.low] for b in buffers if len(b)]
        assert not left_over or max(taken) <= min(left_over)
    assert not any(len(b) for b in buffers)


def _order_keys(source: tuple[str, int], times: Sequence[int]) -> list[tuple[int, bool, tuple[str, int]]]:
    return [(max(times[: i + 1]), source == LEAD, source) for i in range(len(times))]


# Fixed.


def test_fixed_cuts_the_merge_by_log_time_after_the_same_number_of_leading_records():
    buffers = [timed_buffer(LEAD, [1, 3, 5, 7]), timed_buffer(RIGHT_SIDE, [2, 4, 6, 8])]
    schedule = FixedSchedule(buffers, LEAD, 2)
    schedule.set_ends({LEAD: 4, RIGHT_SIDE: 4})
    assert fold(schedule, buffers) == [("lead", 0, 2), ("right", 0, 1)]
    assert fold(schedule, buffers) == [("lead", 2, 4), ("right", 1, 3)]
    assert fold(schedule, buffers) == [("right", 3, 4)]


def test_one_record_more_or_less_of_another_log_moves_no_cut_of_the_leading_one():
    def cuts(times: Sequence[int]) -> list[tuple[int, int]]:
        buffers = [timed_buffer(LEAD, range(10, 40)), timed_buffer(RIGHT_SIDE, times)]
        schedule = FixedSchedule(buffers, LEAD, 5)
        found = []
        while True:
            schedule.set_ends({LEAD: 30, RIGHT_SIDE: len(times)})
            if not (batch := fold(schedule, buffers)):
                return found
            found += [(low, high) for topic, low, high in batch if topic == "lead"]

    times = [3, 11, 14, 14, 15, 20, 22, 39, 41]
    plain = cuts(times)
    assert len(plain) == 6
    for left_out in range(len(times)):
        assert cuts(times[:left_out] + times[left_out + 1 :]) == plain
    for added in range(45):
        assert cuts(sorted([*times, added])) == plain


def test_fixed_breaks_ties_by_topic_then_offset_and_takes_the_leading_log_last():
    buffers = [timed_buffer(RIGHT_SIDE, [1, 2]), timed_buffer(LEFT_SIDE, [1, 1]), timed_buffer(LEAD, [1, 1])]
    schedule = FixedSchedule(buffers, LEAD, 1)
    schedule.set_ends({LEFT_SIDE: 2, RIGHT_SIDE: 2, LEAD: 2})
    assert sorted(fold(schedule, buffers)) == [("lead", 0, 1), ("left", 0, 2), ("right", 0, 1)]


def test_fixed_waits_for_a_log_that_has_more_to_give():
    schedule = FixedSchedule([timed_buffer(LEAD, [1, 2, 3, 4]), timed_buffer(RIGHT_SIDE, [])], LEAD, 2)
    schedule.set_ends({LEAD: 4, RIGHT_SIDE: 1})
    assert schedule.next_batch() == []


def test_fixed_makes_room_for_a_log_that_has_much_between_two_leading_records():
    lead, right = timed_buffer(LEAD, [100, 200]), InputBuffer(RIGHT_SIDE, 0, 4, 1)
    right.sought()
    schedule = FixedSchedule([lead, right], LEAD, 1)
    schedule.set_ends({LEAD: 2, RIGHT_SIDE: 50})
    while not (batch := schedule.next_batch()):
        assert not right.full or right.next_offset == 50
        fresh = range(right.next_offset, min(right.next_offset + 3, 50))
        right.offer([InputRecord(i, i, b"v") for i in fresh])
    assert sorted(ranges(batch)) == [("lead", 0, 1), ("right", 0, 50)]


def test_fixed_cuts_a_short_batch_only_at_the_ends_and_then_looks_again():
    schedule = FixedSchedule([timed_buffer(LEAD, [1]), timed_buffer(RIGHT_SIDE, [2])], LEAD, 5)
    assert schedule.wants_ends
    assert schedule.next_batch() == []
    schedule.set_ends({LEAD: 1, RIGHT_SIDE: 1})
    assert ranges(schedule.next_batch()) == [("lead", 0, 1), ("right", 0, 1)]
    assert schedule.wants_ends


def test_fixed_gives_the_same_cuts_however_records_arrived():
    times_lead, times_right = [1, 4, 5, 9, 10, 12], [2, 3, 6, 7, 8, 11]

    def cuts(arrivals: Sequence[int]) -> list[list[tuple[str, int, int]]]:
        lead, right = timed_buffer(LEAD, []), timed_buffer(RIGHT_SIDE, [])
        schedule = FixedSchedule([lead, right], LEAD, 2)
        found = []
        for step in arrivals:
            for made, times in ((lead, times_lead), (right, times_right)):
                fresh = range(made.next_offset, min(made.next_offset + step, len(times)))
                made.offer([InputRecord(i, times[i], b"v") for i in fresh])
            schedule.set_ends({LEAD: 6, RIGHT_SIDE: 6})
            while batch := fold(schedule, [lead, right]):
                found.append(batch)
                schedule.set_ends({LEAD: 6, RIGHT_SIDE: 6})
        return found

    assert cuts([6]) == cuts([1] * 6) == cuts([2, 1, 3])
    assert len(cuts([6])) == 3


def test_fixed_offers_more_when_the_machine_holds_everything_back():
    schedule = FixedSchedule([timed_buffer(LEAD, range(10))], LEAD, 2)
    schedule.set_ends({LEAD: 10})
    assert ranges(schedule.next_batch()) == [("lead", 0, 2)]
    assert schedule.held_back(None)
    assert ranges(schedule.next_batch()) == [("lead", 0, 4)]
    schedule.folded()
    assert ranges(schedule.next_batch()) == [("lead", 0, 2)]


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


def test_a_context_waits_from_its_arrival_on_where_another_can_be_expected(base):
    scene = Scene(base).at_pace(WAIT / 2)
    assert scene.left() == 0.0, "nothing waits"
    scene.comes(scene.contexts, WAIT / 2)
    assert scene.left() == pytest.approx(WAIT, abs=ROUNDED)
    scene.comes(scene.contexts, WAIT / 2)
    assert scene.left() == pytest.approx(WAIT / 2, abs=ROUNDED), "one that joins it prolongs nothing"
    assert scene.left(WAIT / 2) == pytest.approx(0.0, abs=ROUNDED)
    assert scene.left(WAIT) == 0.0


def test_nobody_waits_at_a_pace_that_would_bring_nothing(base):
    scene = Scene(base).at_pace(2 * WAIT)
    scene.comes(scene.contexts, 2 * WAIT)
    assert scene.left() == 0.0


def test_a_pace_is_found_again_soon_after_a_long_pause(base):
    scene = Scene(base).at_pace(WAIT / 2)
    scene.at_pace(3600.0, count=1).at_pace(WAIT / 2, count=16)
    scene.comes(scene.contexts, WAIT / 2)
    assert scene.left() > 0


@pytest.mark.parametrize(("count", "value"), [(16, VALUE), (1, b"x" * 5000)], ids=["records", "columnar"])
def test_nothing_waits_once_there_is_enough(count, value, base):
    scene = Scene(base).at_pace(WAIT / 2)
    scene.comes(scene.contexts, 0.0, count, value)
    assert scene.left() == 0.0


def test_clicks_end_no_wait_and_prolong_none(base):
    scene, other = (Scene(base).at_pace(WAIT / 2) for _ in range(2))
    for one in (scene, other):
        one.comes(one.contexts, WAIT / 2)
    scene.comes(scene.clicks, WAIT / 4, count=200)
    assert scene.left() == pytest.approx(other.left(WAIT / 4), abs=ROUNDED)


def test_clicks_that_came_first_wait_for_a_context_and_then_as_long_as_it(base):
    scene = Scene(base).at_pace(WAIT / 2)
    scene.comes(scene.clicks, WAIT / 2)
    assert scene.left(WAIT) > 0
    scene.comes(scene.contexts, WAIT / 2)
    assert scene.left() == pytest.approx(WAIT, abs=ROUNDED)


def test_clicks_are_folded_where_no_context_comes_any_more(base):
    scene = Scene(base).at_pace(WAIT / 2)
    scene.comes(scene.clicks, 1.0)
    assert scene.left() == 0.0


def test_what_a_fold_left_over_does_not_wait_again(base):
    scene = Scene(base).at_pace(WAIT / 2)
    scene.comes(scene.contexts, WAIT / 2, count=2)
    scene.contexts.advance(scene.contexts.low + 1)
    scene.linger.folded()
    assert scene.left(WAIT) == 0.0


def test_without_a_wait_every_arrival_is_folded_at_once(base):
    scene = Scene(base, 0.0).at_pace(0.0)
    scene.comes(scene.contexts)
    assert scene.left() == 0.0


def test_a_wait_ends_with_what_makes_it_enough(base):
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


# Before its first fold of all a partition waits for what others have published by then, and not for long.

PATIENCE_SECONDS = 60.0
RULES = ("rules", 0)


class Run:
    """A driver of one partition whose machine scales its events by the last rule that was published."""

    def __init__(
        self, machines: Any, folder: Path, published: int | Exception, seconds: float, sequence: int = 0
    ) -> None:
        settings = WorkerSettings(
            bootstrap="127.0.0.1:1", role="joining", group="g", datadir=folder, named_wait_seconds=seconds,
            tick_interval_seconds=0.02,
        )  # fmt: skip
        self.sent: list[Output] = []
        self.before = sequence
        self.lost: list[BaseException] = []
        machine = machines.joining()[0](0)
        genesis = machine.genesis(bytes(4))
        machine.start(genesis)

        async def ends(places: list[TopicPartition]) -> dict[TopicPartition, int]:
            if isinstance(published, Exception):
                raise published
            return dict.fromkeys(places, published)

        async def nothing(*_: Any) -> Any:
            return {}

        tools = Tools(
            settings=settings, sender=self, snapshots=SnapshotStore(settings, KEYS), marks=None, states=None,
            metrics=Metrics(Labels("joining", partitions=1)), observe=lambda *_: None, end_offsets=ends,
            fetched_end=lambda _: 1, read_journal=nothing, notify_capacity=lambda: None,
            lost=lambda _, reason: self.lost.append(reason),
        )  # fmt: skip
        self.driver = PartitionDriver(0, RecoveredMachine(machine, genesis, sequence, sequence + 1), tools)
        self.left, self.right = self.driver.inputs
        (self.rules,) = self.driver.broadcasts
        for buffer in (self.left, self.right, self.rules):
            buffer.sought()
        self.right.offer([InputRecord(0, 1_000, b"1")])
        self.left.offer([InputRecord(0, 1_000, b"[10, 0]")])

    async def send(self, output: Output) -> asyncio.Future[Any]:
        self.sent.append(output)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        journal = [one for one in self.sent if one.topic.startswith("journal")]
        future.set_result(SimpleNamespace(offset=self.before + len(journal)))
        return future

    async def folded(self) -> bytes:
        """What is joined, once it was."""
        waiting = Patience(PATIENCE_SECONDS)
        while not (found := [one.value for one in self.sent if one.topic == "joined"]):
            assert not waiting.over, self.lost
            await asyncio.sleep(0.002)
        return found[0]

    async def close(self) -> None:
        await self.driver.close(PATIENCE_SECONDS)


@pytest.mark.asyncio
async def test_the_first_fold_waits_for_what_was_published(machines, tmp_path):
    run = Run(machines, tmp_path, published=2, seconds=PATIENCE_SECONDS)
    run.driver.start()
    run.rules.offer([InputRecord(0, 900, b"5")])
    for _ in range(50):
        await asyncio.sleep(0.002)
    assert not run.sent
    run.rules.offer([InputRecord(1, 901, b"7")])
    assert b"71" in await run.folded()
    await run.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("published", [1, ConnectionError("no broker")], ids=["out of reach", "unknown"])
async def test_what_is_out_of_reach_is_not_waited_for_long(published, machines, tmp_path, caplog):
    run = Run(machines, tmp_path, published, seconds=0.05)
    run.driver.start()
    assert b"11" in await run.folded()
    await run.close()
    assert "partition 0: begins before all published records arrived" in caplog.text
    assert not run.lost


@pytest.mark.asyncio
async def test_a_partition_that_has_folded_before_waits_for_nothing(machines, tmp_path):
    run = Run(machines, tmp_path, published=1, seconds=PATIENCE_SECONDS, sequence=1)
    run.driver.start()
    assert b"11" in await run.folded()
    await run.close()


@pytest.mark.asyncio
async def test_a_driver_that_is_closed_meanwhile_ends(machines, tmp_path):
    run = Run(machines, tmp_path, published=1, seconds=PATIENCE_SECONDS)
    run.driver.start()
    await asyncio.sleep(0.01)
    await asyncio.wait_for(run.close(), PATIENCE_SECONDS / 2)
    assert not run.sent
    assert not run.lost
