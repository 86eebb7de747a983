"""Clients of records and of ranked items."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import permutations
from math import prod
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.client import Client, UnknownArm
from hushstream.client.decisions import Decision
from hushstream.client.records import Prediction, RecordClient, RefusedRecord
from hushstream.engine.configuration import ExplorationConfig
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.studies.pdol.worlds import sparse_synthetic
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdol.configuration import PdolConfig, RecordConfig, SharingConfig

NODES, HOMES, PHASE = 4, 2, 320
STREAM = sparse_synthetic(records=2 * PHASE, dimension=60, features=8, nodes=NODES, seed=3)
PLACES = range(len(STREAM))
NAMES, USERS = [f"e{place}" for place in PLACES], [f"u{place}" for place in PLACES]
OWNERS, LABELS = STREAM.nodes.tolist(), STREAM.rows.labels.tolist()

Play = Callable[[RecordClient, range, int], Awaitable[list[int]]]


async def one_by_one(client: RecordClient, here: range, after: int) -> list[int]:
    found = []
    for place in here:
        row = STREAM.rows.part(place, place + 1)
        asked = await client.predict_slot(NAMES[place], USERS[place], OWNERS[place], row, after_phase=after)
        found.append(asked.label)
    for place in here:
        await client.label(NAMES[place], USERS[place], OWNERS[place], LABELS[place])
    return found


async def at_once(client: RecordClient, here: range, after: int) -> list[int]:
    names, users, nodes = (column[here.start : here.stop] for column in (NAMES, USERS, OWNERS))
    rows = STREAM.rows.part(here.start, here.stop)
    asked = await client.predict_many(names, users, nodes, rows, after_phase=after)
    assert [one.event_id for one in asked] == names
    assert await client.label_many(names, users, nodes, LABELS[here.start : here.stop]) == []
    return [one.label for one in asked if isinstance(one, Prediction)]


def played(folder: Path, play: Play) -> tuple[list[int], MemoryLog]:
    sharing = SharingConfig("exact", slots_per_release=16, horizon=8, domains=HOMES)
    config = PdolConfig("many", NODES, RecordConfig(STREAM.dimension, label_slots=4096), sharing)
    system = prepare(folder, config, public_dataset=STREAM.name)
    log = MemoryLog(lambda: 1_700_000_000_000)
    driver = DirectDriver(log, all_machines(system, KeySource(seed=1)), bytes(32))

    async def run() -> list[int]:
        found: list[int] = []
        async with RecordClient(DirectEventLog(log, driver, HOMES, "predictions"), NODES, STREAM.dimension) as client:
            for phase in range(2):
                found += await play(client, range(phase * PHASE, (phase + 1) * PHASE), phase - 1)
                await client.end_phase(phase)
        return found

    return asyncio.run(run()), log


def written(log: MemoryLog, topic: str) -> list[dict[str, Any]]:
    return [codec.decode(record.value)[1] for (name, _), held in log.partitions() if name == topic for record in held]


def test_answers_and_sums_are_those_of_the_same_records_one_by_one(tmp_path):
    single, alone = played(tmp_path / "alone", one_by_one)
    many, together = played(tmp_path / "together", at_once)
    assert many == single
    assert len(set(many[PHASE:])) == 2, "the second phase is predicted by a model"
    sums = [
        [(one["leaf"], one["sums"]) for one in written(log, "releases") if "sums" in one] for log in (alone, together)
    ]
    assert sums[0] == sums[1] != []
    # Records, labels and the end of a phase at each home.
    assert len(written(together, "records")) == 2 * HOMES * 3 < len(written(alone, "records")) / 50


def test_what_does_not_fit_together_is_refused_before_anything_is_sent(tmp_path):
    log = MemoryLog(lambda: 0)
    client = RecordClient(
        DirectEventLog(log, DirectDriver(log, [], bytes(32)), 1, "predictions"), NODES, STREAM.dimension
    )
    rows = STREAM.rows.part(0, 2)
    asked: list[tuple[list[str], list[str], list[int]]] = [
        (["a"], ["u", "v"], [0, 0]),
        (["a", "a"], ["u", "v"], [0, 0]),
    ]
    for names, users, nodes in asked:
        with pytest.raises(HushstreamError, match="expected"):
            asyncio.run(client.predict_many(names, users, nodes, rows))
    with pytest.raises(HushstreamError, match="label_many: expected"):
        asyncio.run(client.label_many(["a", "b"], ["u", "v"], [0, 0], [1]))
    assert not any(len(held) for _, held in log.partitions())


def test_a_refused_record_is_named_with_its_reason_and_holds_back_no_other(tmp_path):
    """Refused here: an empty user, an unknown node. By the worker: an event of another user, a node that has left."""
    config = PdolConfig("many", NODES, RecordConfig(STREAM.dimension), SharingConfig("exact", domains=HOMES))
    log = MemoryLog(lambda: 1_700_000_000_000)
    machines = all_machines(prepare(tmp_path, config, public_dataset=STREAM.name), KeySource(seed=1))
    driver = DirectDriver(log, machines, bytes(32))
    names, nodes = [f"r{number}" for number in range(6)], [0, 1, NODES, 0, 3, 1]
    users = ["ann", "", "cem", "bob", "dee", "eve"]

    async def run() -> tuple[list[Prediction | RefusedRecord], list[RefusedRecord]]:
        async with RecordClient(DirectEventLog(log, driver, HOMES, "predictions"), NODES, STREAM.dimension) as client:
            await client.predict_slot("r3", "ann", 0, STREAM.rows.part(0, 1))
            await client.leave(3)
            asked = await client.predict_many(names, users, nodes, STREAM.rows.part(0, 6))
            return asked, await client.label_many(names, users, nodes, [1, 1, 1, 1, -1, 0])

    asked, told = asyncio.run(run())
    assert [one.event_id for one in asked] == names
    assert [isinstance(one, Prediction) for one in asked] == [True, False, False, False, False, True]
    why = [str(one.error) for one in asked if isinstance(one, RefusedRecord)]
    assert [one.split(":")[0] for one in why] == ["user", "node", "predict", "predict"]
    assert [one.event_id for one in told] == ["r1", "r2", "r5"]
    assert str(told[2].error) == "label: expected 1 or -1, got another value"
    labels = [one for batch in written(log, "records") if "labels" in batch for one in batch["event_ids"]]
    assert sorted(labels) == ["r0", "r3", "r4"]


def test_an_answer_is_taken_from_the_home_of_who_asked_and_from_the_record_that_covers_the_question_alone(tmp_path):
    """Elsewhere an event of the same name is another user's, and so may it be in another batch."""
    _, log = played(tmp_path / "one", at_once)
    place = next(place for place in PLACES if OWNERS[place] * HOMES // NODES == 1)
    journals = {home: log.slice("predictions", home, 0).records for home in range(HOMES)}
    offset = next(
        record.offset
        for record in log.slice("records", 1, 0).records
        if NAMES[place] in codec.decode(record.value)[1].get("event_ids", ())
    )

    async def heard(home: int, offset: int) -> bool:
        client = RecordClient(DirectEventLog(MemoryLog(), None, HOMES, "predictions"), NODES, STREAM.dimension)  # type: ignore[arg-type]
        client._awaited.ask(NAMES[place], "ann", home)
        for partition, records in journals.items():
            for record in records:
                client._awaited.on_record(partition, record.offset, record.value)
        client._awaited.sent(NAMES[place], offset)
        answer = client._awaited.waiting[NAMES[place]].answer
        return answer.done() and answer.exception() is None

    assert not asyncio.run(heard(0, offset))
    assert not asyncio.run(heard(1, offset + 1))
    assert asyncio.run(heard(1, offset))


class HeldLog:
    """Appends wait until they are let through; nobody answers but the test."""

    def __init__(self) -> None:
        self.open, self.written = asyncio.Event(), 0
        self.refuses: HushstreamError | None = None

    def partitions(self) -> int:
        return 1

    async def start(self, on_answers: Callable[[int, int, bytes], None]) -> None: ...

    async def stop(self) -> None: ...

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        self.written += 1
        await self.open.wait()
        if self.refuses is not None:
            raise self.refuses
        return self.written


def test_calls_that_wait_for_one_record_do_not_take_its_answer_from_one_another():
    async def run() -> None:
        log, rows = HeldLog(), STREAM.rows
        async with RecordClient(log, NODES, STREAM.dimension) as client:
            log.open.set()
            short = asyncio.create_task(client.predict_many(["x"], ["u"], [0], rows.part(0, 1), timeout=0.01))
            await asyncio.sleep(0)
            log.open.clear()
            both = asyncio.create_task(client.predict_many(["x", "y"], ["u", "u"], [0, 0], rows.part(0, 2)))
            with pytest.raises(HushstreamError, match="expected an answer"):
                await short
            for name in ("x", "y"):  # while the second is still being sent
                client._awaited.waiting[name].answer.set_result(Prediction(name, 1, 0))
            log.open.set()
            assert await both == [Prediction("x", 1, 0), Prediction("y", 1, 0)]
            assert not client._awaited.waiting

    asyncio.run(run())


@pytest.mark.parametrize("many", [False, True])
def test_a_record_that_the_log_refuses_fails_every_call_that_waits_for_it_and_is_sent_again(many):
    """Without that the second call would wait for a record that nobody sends, and so would whoever asks again."""

    async def run() -> None:
        log, row = HeldLog(), STREAM.rows.part(0, 1)
        async with RecordClient(log, NODES, STREAM.dimension) as client:

            async def ask() -> object:
                if many:
                    return await client.predict_many(["x"], ["u"], [0], row, timeout=None)
                return await client.predict_slot("x", "u", 0, row, timeout=None)

            first, second = (asyncio.create_task(ask()) for _ in range(2))
            await asyncio.sleep(0)
            log.refuses = HushstreamError("append: expected a broker, got none")
            log.open.set()
            with pytest.raises(HushstreamError, match="append: expected a broker"):
                await first
            if many:
                assert await second == [RefusedRecord("x", log.refuses)]
            else:
                with pytest.raises(HushstreamError, match="append: expected a broker"):
                    await second
            assert not client._awaited.waiting
            log.refuses = None
            again = asyncio.create_task(client.predict_slot("x", "u", 0, row))
            await asyncio.sleep(0)
            assert log.written == 2, "one record for both calls, and one for the third"
            client._awaited.waiting["x"].answer.set_result(Prediction("x", 1, 0))
            assert await again == Prediction("x", 1, 0)

    asyncio.run(run())


def test_a_call_that_is_ended_while_it_sends_leaves_no_other_waiting():
    async def run() -> None:
        log, row = HeldLog(), STREAM.rows.part(0, 1)
        async with RecordClient(log, NODES, STREAM.dimension) as client:
            first, second = (asyncio.create_task(client.predict_slot("x", "u", 0, row, timeout=None)) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(HushstreamError, match="the call that sent it was ended"):
                await second
            assert first.cancelled()
            assert not client._awaited.waiting

    asyncio.run(run())


def test_a_name_that_is_no_text_is_refused_before_anything_waits():
    async def run() -> None:
        log = HeldLog()
        async with RecordClient(log, NODES, STREAM.dimension) as client:
            users: Any = ["u", None]
            with pytest.raises(HushstreamError, match="expected texts"):
                await client.predict_many(["a", "b"], users, [0, 0], STREAM.rows.part(0, 2))
            with pytest.raises(HushstreamError, match="label_many: expected texts"):
                await client.label_many(["a", "b"], users, [0, 0], [1, 1])
            nobody: Any = 7
            with pytest.raises(HushstreamError, match="user: expected text, got int"):
                await client.label("a", nobody, 0, 1)
            with pytest.raises(HushstreamError, match="event_id: expected text, got int"):
                await client.predict_slot(nobody, "u", 0, STREAM.rows.part(0, 1))
            assert not client._awaited.waiting
            assert not log.written

    asyncio.run(run())


X = [0.7, 0.1, 0.1, 0.1]


@pytest.fixture
def exploring(log: Any, rigs: Any) -> Any:
    """A log whose learner draws half of its decisions."""
    log.rig = rigs.LearnerRig(rigs.make_system(exploration=ExplorationConfig("epsilon", share=0.5)))
    return log


async def ranked(client: Client, log: Any, *arguments: Any, **keywords: Any) -> list[Decision]:
    """Ask, let the learner work at each position, and give the slate."""
    task = asyncio.create_task(client.rank(*arguments, **keywords))
    while not task.done():
        for _ in range(5):
            await asyncio.sleep(0)
        log.work()
    return await task


async def test_positions_have_events_arms_and_chances_of_their_own(exploring):
    log = exploring
    async with Client(log, rules=log.rig.system.requests) as client:
        # One arm is known to be the best, so that chances differ.
        log.rig.reward((await ranked(client, log, "first", "ann", X, 1))[0].event_id, 3)
        log.work()
        slate = await ranked(client, log, "e", "ann", X, 9)
        assert [one.event_id for one in slate] == ["e", "e#2", "e#3", "e#4", "e#5"]
        assert sorted(one.arm for one in slate) == list(range(5))
        for place, one in enumerate(slate):
            left = 5 - place
            if one.arm == 3:
                explored = 500_000_000 // left
                assert round(one.propensity * 1e9) == explored + 10**9 - explored * left
        assert slate[-1].propensity == 1.0
        # Again it is the same slate, and nothing is sent.
        sent = log.contexts
        assert await client.rank("e", "ann", X, 9) == slate
        assert log.contexts == sent
        # Feedback finds a position by its event.
        before = log.rig.seen.counts["rewarded"]
        await client.reward("e#2", "ann", slate[1].arm, 1.0)
        log.work()
        assert log.rig.seen.counts["rewarded"] == before + 1


async def test_the_chances_of_all_slates_sum_to_one_and_are_those_with_which_they_come(log, rigs):
    """Three arms, half of the choices drawn: of 600 slates each order as often as it states (5 deviations)."""
    log.rig = rigs.LearnerRig(rigs.make_system(exploration=ExplorationConfig("epsilon", share=0.5), arms=3))
    found: Counter[tuple[int, ...]] = Counter()
    stated: dict[tuple[int, ...], float] = {}
    async with Client(log, rules=log.rig.system.requests) as client:
        await ranked(client, log, "first", "ann", X, 1)
        log.rig.reward("first", 1)
        log.work()
        for number in range(600):
            slate = await ranked(client, log, f"e{number}", "ann", X, 3)
            order = tuple(one.arm for one in slate)
            found[order] += 1
            chance = prod(one.propensity or 0.0 for one in slate)
            assert stated.setdefault(order, chance) == chance
    assert set(stated) == set(permutations(range(3)))
    assert abs(sum(stated.values()) - 1) < 1e-8
    for order, chance in stated.items():
        assert abs(found[order] - 600 * chance) < 5 * (600 * chance * (1 - chance)) ** 0.5, order


async def test_a_slate_is_the_applications_own_from_where_no_learner_answers(log):
    async with Client(log, rules=log.rig.system.requests) as client:
        slate = await client.rank("e", "ann", X, 4, eligible=[0, 2, 4], baseline=[4, 1, 0], timeout=0.01)
        assert [(one.arm, one.propensity, one.policy) for one in slate] == [
            (4, None, "timeout"),
            (0, None, "timeout"),
        ], "it ends where the baseline does; what may not be shown is not"
        assert log.contexts == 1, "the first position alone was asked for"
        await client.shown("e#2", "ann", 0)
        assert not log.rig.logs.get(("clicks", 0)), "nobody would know it"


async def test_impossible_slates_are_refused(log):
    async with Client(log) as client:
        with pytest.raises(HushstreamError, match="positions"):
            await client.rank("e", "ann", X, 0, eligible=[1])
        with pytest.raises(HushstreamError, match="rules"):
            await client.rank("e", "ann", X, 2)
    async with Client(log, rules=log.rig.system.requests) as client:
        with pytest.raises(UnknownArm):
            await client.rank("e", "ann", X, 2, eligible=[1, 9])
        with pytest.raises(HushstreamError, match="event_id"):
            await client.rank("e" * 200, "ann", X, 2)
    assert log.contexts == 0
