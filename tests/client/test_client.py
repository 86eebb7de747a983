"""The client over a log: decisions, feedback, arguments, shadow mode, blocking form, partitions that were added."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from hushstream.agents.worker.deployment import KeySource
from hushstream.broker import EmbeddedBroker
from hushstream.client import BadContext, BaselineMissing, Client, DecisionTimeout, RequestRefused, connect
from hushstream.client import client as module
from hushstream.client.decisions import Decision, vector_of
from hushstream.privacy.keys import seeded_key
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.runners.playing import DirectSession
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import partition_of
from hushstream.systems.colin.configuration import CollaborativeConfig, FeatureConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.colin.system import declare
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine
from patience import patience

X = [0.7, 0.1, 0.1, 0.1]


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def asked(client, log, *arguments, **keywords):
    """Ask, let the learner work, and give the answer."""
    task = asyncio.create_task(client.decide(*arguments, **keywords))
    await settle()
    log.work()
    return await task


async def test_an_answer_says_arm_propensity_policy_and_version(log):
    async with Client(log) as client:
        decision = await asked(client, log, "e1", "ann", X)
    assert decision.arm in range(5)
    assert (decision.event_id, decision.user, decision.policy, decision.model_version) == ("e1", "ann", "model", 0)
    assert decision.propensity == 0.2
    assert log.stopped


async def test_an_answer_from_another_partition_is_another_users_and_is_kept_from_who_asked(log, monkeypatch):
    monkeypatch.setattr(log, "partitions", lambda: 2)
    users = {partition_of(f"user-{number}", 2): f"user-{number}" for number in range(20)}
    async with Client(log) as client:
        waiting = asyncio.create_task(client.decide("e1", users[1], X, timeout=None))
        await settle()
        # The same name for an event of somebody at home in partition 0, whose records `log` delivers.
        log.rig.context("e1", users[0], np.array(X))
        log.work()
        await settle()
        assert log.journaled == 2, "that event was answered"
        assert not waiting.done(), "the arm tells of the clicks of the user whose event it is"
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_without_an_answer_in_time_the_baseline_is_given_and_marked(log):
    async with Client(log) as client:
        decision = await client.decide("e1", "ann", X, baseline=3, timeout=0.01)
    assert (decision.arm, decision.policy, decision.propensity) == (3, "timeout", None)


async def test_without_an_answer_and_a_baseline_the_timeout_is_an_error(log):
    async with Client(log) as client:
        with pytest.raises(DecisionTimeout, match=r"expected an answer within 0\.01 s, got none") as raised:
            await client.decide("secret-event", "secret-user", [0.125, 0.375, 0.25, 0.25], timeout=0.01)
    # It says what may be, and nothing of whom or what was asked.
    assert "no learner runs, or it is behind" in str(raised.value)
    assert not {"secret", "125", "375"} & set(re.findall(r"secret|125|375", str(raised.value)))


async def test_a_log_that_hangs_does_not_hold_up_the_baseline(log):
    log.hang = asyncio.Event()
    async with Client(log) as client:
        decision = await asyncio.wait_for(client.decide("e1", "ann", X, baseline=1, timeout=0.02), patience(2))
        assert decision.policy == "timeout"
        log.hang.set()
        await settle()
        log.work()
        assert (await client.decide("e1", "ann", X, timeout=1)).policy == "model"
        assert log.contexts == 1


async def test_a_repeated_event_gets_the_same_answer_without_a_second_record(log):
    async with Client(log) as client:
        first = await asked(client, log, "e1", "ann", X)
        assert await client.decide("e1", "ann", [0.1, 0.1, 0.1, 0.7]) == first
        assert log.contexts == 1


async def test_callers_that_ask_at_the_same_time_share_one_record_and_one_answer(log):
    async with Client(log) as client:
        tasks = [asyncio.create_task(client.decide("e1", "ann", X)) for _ in range(5)]
        await settle()
        log.work()
        assert len(set(await asyncio.gather(*tasks))) == 1
        assert log.contexts == 1


async def test_a_question_that_timed_out_is_not_sent_again_and_may_still_be_answered(log):
    async with Client(log) as client:
        with pytest.raises(DecisionTimeout):
            await client.decide("e1", "ann", X, timeout=0.01)
        log.work()
        assert (await client.decide("e1", "ann", X, timeout=1)).policy == "model"
        assert log.contexts == 1


async def test_an_event_decided_under_another_client_is_answered_as_repeated(log, rigs):
    arm = log.rig.decide("e1")
    log.journaled = 0
    async with Client(log) as client:
        log.tell(log.rig.journal[-1])
        decision = await asked(client, log, "e1", "ann", X)
    assert (decision.arm, decision.policy) == (arm, "repeated")


async def test_one_users_answer_is_never_given_to_another(log):
    async with Client(log) as client:
        task = asyncio.create_task(client.decide("e1", "ann", X))
        await settle()
        with pytest.raises(HushstreamError, match="got another user's"):
            await client.decide("e1", "eve", X)
        log.work()
        await task
        with pytest.raises(HushstreamError, match="got another user's"):
            await client.decide("e1", "eve", X)


async def test_a_refused_record_raises_and_the_event_may_be_asked_again(log):
    async with Client(log) as client:
        log.refusal = HushstreamError("contexts/0 refused the record")
        with pytest.raises(HushstreamError, match="refused the record"):
            await client.decide("e1", "ann", X)
        log.refusal = None
        assert (await asked(client, log, "e1", "ann", X)).policy == "model"


async def test_questions_that_nobody_waits_for_are_forgotten_in_the_end(log, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED_ANSWERS", 5)
    async with Client(log) as client:
        for number in range(20):
            await client.decide(f"e{number}", "ann", X, baseline=0, timeout=0)
        assert len(client._waiting) == len(client._overdue) == 5
        await settle()
        log.work()
        assert not client._waiting
        assert not client._overdue
        assert len(client._answers) == 5


async def test_a_caller_that_gives_up_leaves_nothing_behind_for_ever(log, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED_ANSWERS", 1)
    async with Client(log) as client:
        for number in range(3):
            task = asyncio.create_task(client.decide(f"e{number}", "ann", X, timeout=None))
            await settle()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert len(client._waiting) == 1


async def test_a_context_names_the_users_own_last_click(log):
    async with Client(log) as client:
        decision = await asked(client, log, "e1", "ann", X)
        await client.shown("e1", "ann", decision.arm)
        await client.reward("e1", "ann", decision.arm, 1.0)
        await asked(client, log, "f1", "bob", X)
        await asked(client, log, "e2", "ann", X)
    named = [codec.decode(record.value)[1]["after_click"] for record in log.rig.logs["contexts", 0]]
    assert named == [-1, -1, 1]
    assert log.rig.seen.counts["rewarded"] == 1


async def test_a_phase_end_names_the_last_click_of_the_partition(log):
    async with Client(log) as client:
        await client.end_phase(0)
        decision = await asked(client, log, "e1", "ann", X)
        await client.reward("e1", "ann", decision.arm, 1.0)
        await client.end_phase(1)
    phase_ends = [codec.decode(record.value) for record in log.rig.logs["contexts", 0]]
    assert [(f["phase"], f["after_click"], f["origin"]) for name, f in phase_ends if name == "Seal"] == [
        (0, -1, -1),
        (1, 0, -1),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": [0.5, float("nan"), 0.5, 0]}, "context: expected a vector of finite numbers"),
        ({"context": [1e300, 0, 0, 0]}, "context: expected a vector of finite numbers"),
        ({"context": [[0.5, 0.5]]}, "context: expected a vector"),
        ({"context": "words"}, "context: expected a vector of numbers"),
        ({"context": [[1], [2, 3]]}, "context: expected a vector of numbers"),
        ({"event_id": ""}, "event_id: expected 1 to 128 bytes"),
        ({"event_id": "é" * 65}, "event_id: expected 1 to 128 bytes, got 130"),
        ({"event_id": "a\0b"}, "event_id: expected text in one line, got a control character"),
        ({"user": ""}, "user: expected"),
        ({"eligible": []}, "eligible: expected at least one arm"),
        ({"eligible": [-1]}, "eligible: expected at least one arm"),
        ({"baseline": -2}, "baseline: expected"),
        ({"baseline": 3, "eligible": [1, 2]}, "baseline: expected one of the eligible arms"),
    ],
)
async def test_an_impossible_question_is_refused_at_once_and_not_sent(log, arguments, message):
    async with Client(log) as client:
        with pytest.raises(HushstreamError, match=message):
            await client.decide(**{"event_id": "e1", "user": "ann", "context": X, **arguments})
        assert log.contexts == 0
        assert not client._waiting


@pytest.mark.parametrize("reward", [float("nan"), -0.1, 1.1, float("inf")])
async def test_an_impossible_reward_is_refused_and_not_sent(log, reward):
    async with Client(log) as client:
        with pytest.raises(HushstreamError, match=r"reward: expected a number in \[0, 1\]"):
            await client.reward("e1", "ann", 0, reward)
    assert ("clicks", 0) not in log.rig.logs


async def test_the_eligible_arms_and_the_line_reach_the_learner(log):
    async with Client(log, track="cold") as client:
        decision = await asked(client, log, "e1", "ann", X, eligible=[4], baseline=4)
        assert decision.arm == 4
        await asked(client, log, "e2", "bob", X, track="private")
    tracks = [codec.decode(record.value)[1]["line"] for record in log.rig.logs["contexts", 0]]
    assert tracks == ["cold", "private"]


async def test_the_client_closes_with_questions_open(log):
    log.hang = asyncio.Event()
    async with Client(log) as client:
        task = asyncio.create_task(client.decide("e1", "ann", X, timeout=None))
        await settle()
    assert (await asyncio.gather(task, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    assert log.stopped
    assert not client._sending


async def test_many_users_over_the_direct_runner_each_get_their_own_answers(rigs):
    system = rigs.make_system(partitions={"learner": 2})
    memory = MemoryLog()
    machines = [LearnerMachine(system, home, seeded_key(1, "edge")) for home in (0, 1)]
    machines.append(ShufflerMachine(system, 0, seeded_key(1, "shuffler")))
    driver = DirectDriver(memory, machines, bytes(32))

    async def live(client, user):
        arms = []
        for number in range(3):
            decision = await client.decide(f"{user}:{number}", user, rigs.point(number), timeout=5)
            assert (decision.event_id, decision.user) == (f"{user}:{number}", user)
            await client.reward(decision.event_id, user, decision.arm, float(decision.arm % 2))
            arms.append(decision.arm)
        return arms

    async with Client(DirectEventLog(memory, driver, 2)) as client:
        played = await asyncio.gather(*(live(client, f"user-{n}") for n in range(20)))
        await client.end_phase(0)
        await settle()
    assert np.shape(played) == (20, 3)
    windows = [codec.decode(record.value)[1] for record in memory.slice("window-sums", 0, 0).records]
    assert sum(window["slots"] for window in windows) == 20


class _LateLog:
    """The log of a second process over the same rig; what it appended is acknowledged when the test says so."""

    def __init__(self, log, acknowledge):
        self.log, self.acknowledge = log, acknowledge

    async def start(self, on_answers):
        self.deliver = on_answers
        self.deliver(0, 0, self.log.rig.genesis)

    async def append(self, topic, partition, value):
        offset = int(self.log.rig.put(topic, value, partition))
        await self.acknowledge.wait()
        return offset

    def partitions(self):
        return 1

    async def stop(self):
        pass


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("user", ["eve", "ann"])
async def test_another_process_that_asks_under_the_same_id_does_not_get_the_answer(log, late, user):
    """An answer counts where its record covers the question: here each process asks in a batch of its own."""
    acknowledge = asyncio.Event()
    other = _LateLog(log, acknowledge)

    def folded():
        return [step.journal for step in log.rig.fold().steps]

    async def tell(records):
        for value in records:
            other.deliver(0, log.journaled, value)
            log.tell(value)
        await settle()

    async with Client(log) as first, Client(other) as second:
        one = asyncio.create_task(first.decide("e1", "ann", X))
        await settle()
        batch = folded()
        two = asyncio.create_task(second.decide("e1", user, X))
        await settle()
        if not late:
            acknowledge.set()
            await settle()
        await tell(batch)
        answer = await one
        assert not two.done()
        await tell(folded())
        acknowledge.set()
        if user == "ann":
            again = await two
            assert (again.arm, again.policy) == (answer.arm, "repeated")
        else:
            with pytest.raises(RequestRefused):
                await two


@pytest.fixture
def shadowed(log: Any, rigs: Any) -> Any:
    log.rig = rigs.LearnerRig(rigs.make_system(mode="shadow"))
    return log


async def asked_in_shadow(client: Client, log: Any, event: str, own: int) -> Decision:
    task = asyncio.create_task(client.decide(event, "ann", X, baseline=own))
    for _ in range(5):
        await asyncio.sleep(0)
    log.work()
    return await task


async def test_the_own_choice_comes_back_and_the_answer_is_in_the_log(shadowed):
    log = shadowed
    async with Client(log, rules=log.rig.system.requests) as client:
        for number in range(8):
            own = number % 5
            found = await asked_in_shadow(client, log, f"e{number}", own)
            assert (found.arm, found.policy, found.propensity) == (own, "shadow", None)
            await client.shown(f"e{number}", "ann", own)
            await client.reward(f"e{number}", "ann", own, 1.0)
        log.work()
        # Whoever asks again is not shown what was answered, either.
        assert (await client.decide("e0", "ann", X, baseline=0)).arm == 0
    answers = {answer.event_id: answer for answer in log.rig.seen.answers}
    assert any(answers[f"e{number}"].arm != number % 5 for number in range(8)), "1 - 5^-8 where arms are tied"
    assert log.rig.seen.counts["rewarded"] + log.rig.seen.counts["other_arm"] >= 8, "and it learns of what was shown"


async def test_who_does_not_say_what_is_shown_is_told_to(shadowed):
    log = shadowed
    async with Client(log, rules=log.rig.system.requests) as client:
        with pytest.raises(BaselineMissing, match="expected the application's own choice"):
            await client.decide("e", "ann", X)
    assert log.contexts == 0


async def test_where_no_learner_answers_it_is_the_own_choice_as_ever(shadowed):
    log = shadowed
    async with Client(log, rules=log.rig.system.requests) as client:
        found = await client.decide("e", "ann", X, baseline=2, timeout=0.01)
    assert (found.arm, found.policy) == (2, "timeout")


async def test_a_slate_is_the_applications_own(shadowed):
    log = shadowed
    async with Client(log, rules=log.rig.system.requests) as client:
        task = asyncio.create_task(client.rank("e", "ann", X, 3, baseline=[4, 1]))
        while not task.done():
            for _ in range(5):
                await asyncio.sleep(0)
            log.work()
        slate = await task
    assert [(one.event_id, one.arm, one.policy) for one in slate] == [("e", 4, "shadow"), ("e#2", 1, "shadow")]


ARMS, DIMENSION = 4, 3
WHOLE = [0.1] * (ARMS * DIMENSION)


async def test_a_context_has_a_row_for_each_arm_and_what_is_refused_is_in_the_dead_letters():
    config = CollaborativeConfig(deployment="small", arms=ARMS, features=FeatureConfig(DIMENSION))
    system = declare(CollaborativeSystem.of(config, SocialGraph.of_edges([("ann", "bob", 1.0)])))
    async with DirectSession(system, KeySource(seed=1)) as session, Client(session.event_log()) as client:
        assert (await client.decide("e1", "ann", WHOLE, timeout=60)).policy == "model"
        few = [0.0] * DIMENSION + [0.1] * 2 * DIMENSION + [0.0] * DIMENSION
        assert (await client.decide("e2", "bob", few, eligible=[1, 2], timeout=60)).arm in (1, 2)
        for number, (user, context) in enumerate([("ann", WHOLE[: 2 * DIMENSION]), ("eve", WHOLE)]):
            with pytest.raises(RequestRefused, match="dead-letters list edge"):
                await client.decide(f"refused-{number}", user, context, timeout=None)
        logs = await session.logs()
    letters = [
        codec.decode(record.value)[1] for _, part in logs.of_topic("dead-letters-edge") for record in part.records
    ]
    assert [letter["reason"] for letter in letters] == ["wrong_dimension", "unknown_user"]


NUMBERS = st.one_of(st.floats(), st.floats(width=32), st.integers(-(2**130), 2**130), st.booleans())


@given(st.lists(NUMBERS, max_size=40))
def test_a_list_becomes_what_an_array_of_it_becomes(numbers):
    found: list[Any] = []
    for context in (numbers, np.array([float(one) for one in numbers])):
        try:
            found.append(vector_of(context).tobytes())
        except BadContext as error:
            found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "context", [["x"], [None], [[0.5]], [1e39, -1e39], [float("inf"), float("-inf")], [float("nan")], "0.5", [{}]]
)
def test_what_is_no_vector_of_finite_numbers_is_refused(context):
    with pytest.raises(BadContext, match="expected a vector"):
        vector_of(context)


async def _connect_where_contexts_have_more_partitions() -> None:
    async with EmbeddedBroker() as broker:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        counts = {"contexts": 4, "clicks": 2, "decisions": 2}
        await admin.create_topics([NewTopic(f"shop.{name}", count, 1) for name, count in counts.items()])
        await admin.close()
        async with asyncio.timeout(20), connect(broker.bootstrap, "shop"):
            pass


def test_partitions_that_were_added_to_one_topic_are_named_when_the_client_connects():
    with pytest.raises(HushstreamError, match="as many partitions of clicks as of contexts, found 2 and 4"):
        asyncio.run(_connect_where_contexts_have_more_partitions())
