"""A population run in batches is the machines' own run, and says what it did."""

from __future__ import annotations

import asyncio
import dataclasses
import math

import numpy as np
import pytest

from hushstream.client.client import Client
from hushstream.learners.linucb import LinUCBModel
from hushstream.privacy.keys import seeded_key
from hushstream.replay.catalogue import make_world
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.studies.p2b.play import CONDITIONS, PopulationError, run_population, run_systems
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    LearnerConfig,
    P2BConfig,
    ReleaseConfig,
    SlotConfig,
)
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.machines.aggregator import AggregatorMachine
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine

CONTRIBUTORS, EVALUATED, ROUNDS, SHAPE = 220, 60, 6, 5
TRACKS = {"cold": "cold", "warm_private": "private"}


def _config(**release) -> P2BConfig:
    return P2BConfig(
        "batch",
        SHAPE,
        ContextConfig(SHAPE),
        CONTRIBUTORS,
        encoder=EncoderConfig(codes=6),
        slot=SlotConfig(ROUNDS, 1, settle_seconds=1e6),
        release=ReleaseConfig(**release),
    )


def _world(users=CONTRIBUTORS + EVALUATED, **options):
    return make_world("synthetic", **{"users": users, "rounds": ROUNDS, "dimension": SHAPE, "arms": SHAPE, **options})


class AgentCoins:
    """The coins that the machines' agents throw, under each user's own key."""

    def __init__(self, edge):
        self._edge = edge

    def ties(self, condition, users, round_index):
        # A multiple of every number of tied arms keeps the remainders of the agents' 128-bit draws.
        every = math.lcm(*range(1, SHAPE + 1))
        return np.array([self._draw(condition, user, "tie", round_index) % every for user in users], dtype=np.int64)

    def targets(self, users, slot, below):
        return np.array([self._draw("cold", user, "slot-target", slot) % below for user in users], dtype=np.int64)

    def report_ids(self, users, slot):
        return [self._digest("cold", user, "report-id", slot) for user in users]

    def _draw(self, condition, user, purpose, number):
        return int.from_bytes(self._digest(condition, user, purpose, number), "little")

    def _digest(self, condition, user, purpose, number):
        return self._edge.derive("user", f"{condition}-{user}").digest(purpose, number.to_bytes(8, "little"))


def _by_machines(system, world, edge, shuffler):
    """Rewards by condition, and the published model, from the per-event machines in one process."""
    machines = [
        LearnerMachine(system, 0, edge),
        ShufflerMachine(system, 0, shuffler),
        AggregatorMachine(system, 0),
    ]
    log = MemoryLog()
    driver = DirectDriver(log, machines, bytes(32))
    rewards = {condition: np.zeros((EVALUATED, ROUNDS)) for condition in TRACKS}

    async def play(client, user, condition, earned):
        name = f"{condition}-{user}"
        for index in range(ROUNDS):
            one = np.array([user])
            context = world.contexts(one, index)[0]
            decision = await client.decide(f"{name}:{index}", name, context, track=TRACKS[condition], timeout=None)
            earned[index] = world.rewards(one, index, np.array([decision.arm]))[0]
            await client.reward(f"{name}:{index}", name, decision.arm, earned[index])

    async def both_phases():
        async with Client(DirectEventLog(log, driver, 1)) as client:
            spent = np.zeros((CONTRIBUTORS, ROUNDS))
            await asyncio.gather(*(play(client, user, "cold", spent[user]) for user in range(CONTRIBUTORS)))
            await client.end_phase(0)
            await asyncio.sleep(0)
            await asyncio.gather(
                *(
                    play(client, CONTRIBUTORS + row, condition, rewards[condition][row])
                    for condition in TRACKS
                    for row in range(EVALUATED)
                )
            )

    asyncio.run(both_phases())
    policy = machines[0].terms.policy
    return rewards, policy.shared("private").state


@pytest.mark.sweep(keep=["clicks"])
@pytest.mark.parametrize(
    "release",
    [{"epsilon": 1.0}, {"epsilon": 2.0, "levels": 8}],
    ids=["clicks", "levels"],
)
def test_with_the_users_own_coins_a_run_is_the_machines_own(release):
    """Models, noise included, to the bit; decisions but for float ties (at most 1 in 100 rewards may differ)."""
    system = P2BSystem.fitted(_config(**release), public_dataset=True)
    world = _world(seed=4, outcome="gaussian" if release.get("levels") else "clicks")
    edge, shuffler = seeded_key(3, "edge"), seeded_key(3, "shuffler")
    rewards, state = _by_machines(system, world, edge, shuffler)
    run = run_population(system, world, CONTRIBUTORS, EVALUATED, 3, coins=AgentCoins(edge), key=shuffler)
    model = run.models["warm_private"]
    np.testing.assert_array_equal(state.packed, LinUCBModel(model.gram, model.moment).state().packed)
    for condition in TRACKS:
        assert np.mean(np.abs(rewards[condition] - run.rewards[condition]) > 1e-12) <= 0.01


def test_cutting_users_into_chunks_changes_nothing(monkeypatch):
    world, system = _world(seed=1), P2BSystem.fitted(_config())
    whole = run_population(system, world, CONTRIBUTORS, EVALUATED, 5)
    monkeypatch.setattr("hushstream.replay.studies.p2b.play.CHUNK_USERS", 37)
    parts = run_population(system, world, CONTRIBUTORS, EVALUATED, 5)
    for condition in CONDITIONS:
        np.testing.assert_array_equal(whole.rewards[condition], parts.rewards[condition])
    np.testing.assert_array_equal(whole.models["warm_private"].moment, parts.models["warm_private"].moment)


def test_a_seed_repeats_a_run_and_another_seed_draws_other_noise():
    world, system = _world(seed=1), P2BSystem.fitted(_config())
    first, again, other = (run_population(system, world, CONTRIBUTORS, EVALUATED, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(first.rewards[one], again.rewards[one]) for one in CONDITIONS)
    assert not np.array_equal(first.models["warm_private"].moment, other.models["warm_private"].moment)


@pytest.mark.parametrize(("mode", "threshold"), [("tuples", 2), ("paper", 8)], ids=["tuples", "paper"])
def test_every_report_is_released_or_left_out_for_a_counted_reason(mode, threshold):
    system = P2BSystem.fitted(_config(mode=mode, sampling=0.5, threshold=threshold, window_slots=100))
    counts = run_population(system, _world(seed=2), CONTRIBUTORS, EVALUATED).released
    assert counts.windows == 3
    assert counts.slots == counts.reports == CONTRIBUTORS
    assert counts.reports == counts.unsampled + counts.below_threshold + counts.released
    # Binomial(220, .5): outside with probability below 1e-6.
    assert abs(counts.unsampled - 110) < 37
    assert counts.below_threshold > 0
    assert counts.released > 0


def test_a_threshold_of_one_withholds_nothing():
    system = P2BSystem.fitted(_config(mode="tuples", sampling=0.5, threshold=1))
    counts = run_population(system, _world(seed=2), CONTRIBUTORS, EVALUATED).released
    assert counts.below_threshold == 0
    assert counts.withheld_share == 0.0


def test_slot_sums_withhold_nothing_and_the_guarantee_names_the_seeded_key():
    run = run_population(P2BSystem.fitted(_config()), _world(seed=2), CONTRIBUTORS, EVALUATED)
    assert run.released.released == CONTRIBUTORS
    assert run.guarantee.reproducible
    assert run.guarantee.epsilon_micro == 1_000_000


def test_each_slot_of_a_longer_life_reports_one_interaction_of_its_own_stretch():
    config = dataclasses.replace(_config(), slot=SlotConfig(2, 3))
    run = run_population(P2BSystem.fitted(config), _world(seed=2), CONTRIBUTORS, EVALUATED)
    assert run.released.reports == 3 * CONTRIBUTORS
    assert run.guarantee.lifetime.units == 3


def test_users_differ_between_arms_by_their_start_alone():
    """Without exploration and with rewards that never come nobody learns: all conditions then choose alike."""
    config = dataclasses.replace(_config(epsilon=20.0), learner=LearnerConfig(alpha=0.0))
    world = _world(seed=3, reward_scale=1e-9)
    run = run_population(P2BSystem.fitted(config), world, CONTRIBUTORS, EVALUATED)
    np.testing.assert_array_equal(run.rewards["cold"], run.rewards["warm_nonprivate"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arms": 7}, "7 arms"),
        ({"slot": SlotConfig(ROUNDS + 1, 1)}, "no slot would fall due"),
    ],
)
def test_what_cannot_be_played_is_refused_with_a_reason(change, words):
    with pytest.raises(PopulationError, match=words):
        run_population(P2BSystem.fitted(dataclasses.replace(_config(), **change)), _world(), CONTRIBUTORS, EVALUATED)


def test_a_world_that_is_not_public_is_not_played():
    with pytest.raises(PopulationError, match="expected data marked as public"):
        run_population(
            P2BSystem.fitted(_config()), dataclasses.replace(_world(), public=False), CONTRIBUTORS, EVALUATED
        )


def test_too_few_users_are_refused():
    with pytest.raises(PopulationError, match="at most 280"):
        run_population(P2BSystem.fitted(_config()), _world(), CONTRIBUTORS, EVALUATED + 1)


def test_deployments_run_together_get_what_each_gets_alone():
    world = _world(seed=6)
    systems = [P2BSystem.fitted(_config(epsilon=epsilon)) for epsilon in (0.5, 2.0)]
    together = run_systems(systems, world, CONTRIBUTORS, EVALUATED, 2)
    for system, run in zip(systems, together, strict=True):
        alone = run_population(system, world, CONTRIBUTORS, EVALUATED, 2)
        for condition in CONDITIONS:
            np.testing.assert_array_equal(alone.rewards[condition], run.rewards[condition])
        assert alone.guarantee == run.guarantee


def test_deployments_with_other_learners_are_not_run_together():
    other = dataclasses.replace(_config(), learner=LearnerConfig(alpha=2.0))
    systems = [P2BSystem.fitted(_config()), P2BSystem.fitted(other)]
    with pytest.raises(PopulationError, match="learner"):
        run_systems(systems, _world(), CONTRIBUTORS, EVALUATED)
