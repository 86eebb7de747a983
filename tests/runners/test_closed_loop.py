"""The closed loop: an application's population over the client, the same for one seed whatever else happens."""

import asyncio

import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.replay.catalogue import make_world
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.runners.stream import WorkerDied, first_of
from hushstream.replay.studies.p2b.run import TRACK_OF, ClosedLoop, Plan
from hushstream.replay.worlds.world import BLOCK_USERS, BlockedWorld
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    P2BConfig,
    PartitionConfig,
    ReleaseConfig,
    SlotConfig,
)
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.system import declare


@pytest.fixture(scope="module")
def world():
    return make_world("synthetic", users=60, seed=4)


@pytest.fixture(scope="module")
def system(world):
    config = P2BConfig(
        "loop",
        world.arms,
        ContextConfig(world.dimension),
        40,
        encoder=EncoderConfig(codes=4),
        slot=SlotConfig(world.rounds, 1, settle_seconds=1e6),
        release=ReleaseConfig(),
        partitions=PartitionConfig(2, 2),
    )
    return declare(P2BSystem.fitted(config, public_dataset=True))


def play(world, system, plan, progress=None):
    log = MemoryLog()
    driver = DirectDriver(log, all_machines(system, KeySource(seed=1)), bytes(32))
    played = asyncio.run(ClosedLoop(world, plan, progress).run(DirectEventLog(log, driver, 2)))
    return played, log


def sums_of(log):
    return [
        sorted(record.value for record in records) for (topic, _), records in log.partitions() if topic == "window-sums"
    ]


@pytest.fixture(scope="module")
def played(world, system):
    return play(world, system, Plan(40, 6))


def test_two_runs_of_one_seed_decide_alike_however_many_users_act_at_once(world, system, played):
    for in_flight in (1, 7):
        again, log = play(world, system, Plan(40, 6, in_flight=in_flight))
        for condition in ("contributors", *TRACK_OF):
            np.testing.assert_array_equal(
                again.chosen[condition], played[0].chosen[condition], err_msg=f"{condition} {in_flight}"
            )
            np.testing.assert_array_equal(again.rewards[condition], played[0].rewards[condition])
        assert sums_of(log) == sums_of(played[1])


def test_rewards_are_those_of_the_world_for_the_arms_chosen(world, played):
    users = {"contributors": np.arange(40), **{condition: np.arange(40, 46) for condition in TRACK_OF}}
    for condition, numbers in users.items():
        for round_index in range(world.rounds):
            expected = world.rewards(numbers, round_index, played[0].chosen[condition][:, round_index].astype(np.int64))
            np.testing.assert_array_equal(played[0].rewards[condition][:, round_index], expected)


def test_every_contributor_gives_one_slot_and_the_evaluated_come_too_late_for_the_release(played):
    _, log = played
    (partition,) = sums_of(log)
    assert sum(codec.decode(value)[1]["slots"] for value in partition) == 40


def test_the_arms_of_the_comparison_start_from_their_lines(played):
    versions = {}
    for (topic, _), records in played[1].partitions():
        for record in records if topic == "decisions" else ():
            name, fields = codec.decode(record.value)
            if name == "Decisions":
                found = np.frombuffer(fields["model_versions"], "<i4").tolist()
                for event_id, version in zip(fields["event_ids"], found, strict=True):
                    versions.setdefault(event_id.split("-")[0], set()).add(version)
    assert versions["contributors"] == versions["cold"] == {0}
    assert 0 not in versions["warm_private"]


def test_progress_counts_every_interaction_once(world, system):
    seen = []
    plan = Plan(4, 2, conditions=("cold",))
    result, _ = play(world, system, plan, lambda done, total, what: seen.append((done, total, what)))
    total = (4 + 2) * world.rounds
    assert [done for done, _, _ in seen] == list(range(1, total + 1))
    assert {total_seen for _, total_seen, _ in seen} == {total}
    assert [what for _, _, what in seen] == ["phase 0"] * 4 * world.rounds + ["phase 1"] * 2 * world.rounds
    assert result.decisions == total


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"conditions": ("cold", "hot")}, "conditions: expected some of .*, got hot"),
        ({"contributors": -1}, "expected at least one user"),
        ({"contributors": 0, "evaluated": 0}, "expected at least one user"),
        ({"in_flight": 0}, "expected in_flight"),
        ({"pace": 0.0}, "expected in_flight and pace"),
        ({"first": -1}, "expected in_flight"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(values, message):
    with pytest.raises(HushstreamError, match=message):
        Plan(**{"contributors": 4, "evaluated": 2, **values})


def test_a_plan_for_more_users_than_the_world_has_is_refused(world):
    with pytest.raises(HushstreamError, match="expected at most the world's 60 users, got 61"):
        ClosedLoop(world, Plan(50, 11))


@pytest.mark.parametrize("users", [BLOCK_USERS - 1, BLOCK_USERS + 3])
def test_a_world_asked_in_blocks_is_the_world(users):
    world = make_world("synthetic", users=users, seed=9)
    blocked = BlockedWorld(world)
    generator = np.random.default_rng(1)
    for user in (0, users - 1, *generator.integers(0, users, 20).tolist()):
        round_index, arm = int(generator.integers(world.rounds)), int(generator.integers(world.arms))
        numbers = np.array([user])
        np.testing.assert_array_equal(blocked.context(user, round_index), world.contexts(numbers, round_index)[0])
        assert blocked.reward(user, round_index, arm) == world.rewards(numbers, round_index, np.array([arm]))[0]
        masks = world.eligible(numbers, round_index)
        assert (blocked.eligible(user, round_index) is None) == (masks is None or not masks[0])


class Restricted:
    """The synthetic world where every user may be shown two arms of their own, and refuses any other."""

    def __init__(self, world):
        self._world = world

    def __getattr__(self, name):
        return getattr(self._world, name)

    def eligible(self, users, round_index):
        return [((1 << int(user) % 9) | (1 << int(user) % 9 + 1)).to_bytes(2, "little") for user in users]

    def rewards(self, users, round_index, arms):
        for user, arm in zip(users, arms, strict=True):
            assert arm in (user % 9, user % 9 + 1), "asked for an arm that this user may not be shown"
        return self._world.rewards(users, round_index, arms)


def test_blocks_keep_every_users_own_eligible_arms():
    world = Restricted(make_world("synthetic", users=30, seed=9))
    blocked = BlockedWorld(world)
    for user in range(30):
        assert blocked.eligible(user, 0) == [user % 9, user % 9 + 1]
        expected = world.rewards(np.array([user]), 0, np.array([user % 9]))[0]
        assert blocked.reward(user, 0, user % 9) == expected


def test_blocks_are_forgotten_and_computed_again_alike(monkeypatch):
    monkeypatch.setattr("hushstream.replay.worlds.world.KEPT_BLOCKS", 2)
    world = make_world("synthetic", users=10, seed=2)
    blocked = BlockedWorld(world)
    first = [blocked.context(3, r).copy() for r in range(world.rounds)]
    again = [blocked.context(3, r) for r in range(world.rounds)]
    np.testing.assert_array_equal(first, again)
    assert len(blocked._blocks) == 2


def test_whoever_plays_is_ended_by_a_process_that_ends() -> None:
    async def dies() -> None:
        raise WorkerDied("learner ended with code 9")

    assert asyncio.run(first_of(asyncio.sleep(0.0, "played"), asyncio.sleep(60.0))) == "played"
    with pytest.raises(WorkerDied, match="code 9"):
        asyncio.run(first_of(asyncio.sleep(60.0), dies()))
