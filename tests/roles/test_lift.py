"""The lift of the model over a hold-out: who is in it, what is counted, and what leaves."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.privacy.amounts import delta_value
from hushstream.systems.lift import LiftCounter, holdout_arm, in_holdout, lift_guarantee, lift_of, lift_tree

LIFT = {"holdout": 0.5, "epsilon": 20.0, "decisions_per_user": 5, "every_seconds": 100.0, "releases": 64}
USERS = [f"user-{number}" for number in range(12)]


@pytest.fixture
def rig(rigs):
    return rigs.LearnerRig(rigs.make_system(lift=LIFT, slot={"after_interactions": 100}))


def held_out(rig):
    return {user for user in USERS if rig.machine.in_holdout(user)}


def play(rigs, rig, rounds=3):
    for number in range(rounds):
        for user in USERS:
            event = f"{user}:{number}"
            arm = rig.decide(event, user, rigs.point(number), baseline=2)
            rig.reward(event, arm, 1.0 if number % 2 else 0.0, user)
            rig.fold()


def exact(rig, rounds=3):
    """What the noise is added to, by hand."""
    sums = np.zeros(4, dtype=np.int64)
    for user in USERS:
        place = 2 if user in held_out(rig) else 0
        counted = min(rounds, LIFT["decisions_per_user"])
        sums[place] += counted
        sums[place + 1] += sum(number % 2 for number in range(counted))
    return sums


def test_the_hold_out_is_answered_by_the_baseline_and_says_so(rigs, rig):
    play(rigs, rig)
    outside = held_out(rig)
    assert 0 < len(outside) < len(USERS)
    for answer in rig.seen.answers:
        user = answer.event_id.partition(":")[0]
        assert (answer.policy == 1) == (user in outside)
        if user in outside:
            assert (answer.arm, answer.propensity) == (2, 10**9)


def test_without_a_baseline_the_hold_out_sees_each_eligible_arm_with_equal_chance(rigs, rig):
    key = rig.machine.agents.user_key(next(iter(held_out(rig))))
    eligible = np.array([0, 3, 4])
    drawn = [holdout_arm(key, f"event-{number}", eligible) for number in range(3000)]
    counts = np.bincount(drawn, minlength=5)
    # Binomial(3000, 1/3): further than 160 off has a chance below 1e-9.
    assert counts[[1, 2]].sum() == 0
    assert np.abs(counts[eligible] - 1000).max() < 160
    user = next(iter(held_out(rig)))
    rig.decide("e", user, rigs.point(0), eligible=bytes([0b00011001]))
    assert rig.seen.answers[-1].propensity == 10**9 // 3


def test_membership_is_a_share_of_users_and_lasts_for_life(rigs):
    system = rigs.make_system(lift={**LIFT, "holdout": 0.2})
    machine = rigs.LearnerRig(system).machine
    keys = [machine.agents.user_key(f"u{number}") for number in range(4000)]
    share = np.mean([in_holdout(key, system.config.lift) for key in keys])
    # Binomial(4000, .2): further than .04 off has a chance below 1e-9.
    assert abs(share - 0.2) < 0.04


def test_the_released_sums_are_the_exact_ones_plus_the_counters_noise(rigs, rig):
    play(rigs, rig)
    rig.seal()
    (record,) = rig.fold().records("lift", "Lift")
    twin = LiftCounter(
        rig.system.config.lift,
        1,
        rig.key.derive("lift"),
        rig.system.lift_address(rig.machine.chain.genesis_nonce, 0),
    )
    noise = twin.release()
    np.testing.assert_array_equal(np.frombuffer(record["sums"], "<i8"), exact(rig) + noise.sums)
    assert record["variance"] == noise.variance
    assert record["leaf"] == 1


def test_a_users_further_decisions_do_not_count(rigs, rig):
    rounds = LIFT["decisions_per_user"] + 3
    play(rigs, rig, rounds)
    assert rig.machine.lift._waiting.tolist() == exact(rig, rounds).tolist()


def test_a_showing_without_a_reward_counts_when_its_wait_is_over(rigs, rig):
    arm = rig.decide("e", "user-0", rigs.point(0), baseline=2)
    rig.shown("e", arm, "user-0")
    rig.fold()
    assert not rig.machine.lift._waiting.any()
    rig.wait(6)
    rig.decide("later", "user-1", rigs.point(0), baseline=2)
    waiting = rig.machine.lift._waiting.reshape(2, 2)
    assert waiting.sum(axis=0).tolist() == [1, 0]
    assert waiting[1 if "user-0" in held_out(rig) else 0].tolist() == [1, 0]


def test_releases_follow_log_time_and_seals_and_are_paid_for_once(rigs, rig):
    play(rigs, rig, 1)
    rig.wait(250)
    rig.decide("tick", "user-0", rigs.point(0), baseline=2)
    rig.seal()
    rig.fold()
    records = rig.seen.records("lift", "Lift")
    entries = rig.seen.records("ledger-edge", "LedgerEntry")
    assert [record["leaf"] for record in records] == [1, 2]
    assert len({record["counter"] for record in records}) == 1
    assert len({record["release_id"] for record in records}) == 2
    price = lift_guarantee(rig.system.config.lift, 1)
    assert [entry["debit"]["epsilon_micro"] for entry in entries] == [price.epsilon_micro, 0]
    assert entries[0]["debit"]["scope"] == "lift/0"
    assert [debit for record in rig.seen.journals for debit in record["debits"]] == [one["debit"] for one in entries]


def test_the_delta_covers_every_draw_that_one_user_can_change(rigs):
    lift = rigs.make_system(lift=LIFT).config.lift
    tree, promise = lift_tree(lift, 1), lift_guarantee(lift, 1)
    # His five decisions may fall in five leaves, each in all levels, and move his group's two sums.
    changed = lift.decisions_per_user * tree.levels * 2
    assert delta_value(promise.cost.delta_units) >= changed * tree.noise.residue
    assert any(f"at most {lift.decisions_per_user} leaves" in condition for condition in promise.conditions)


def test_after_its_last_release_the_counter_is_silent(rigs):
    rig = rigs.LearnerRig(rigs.make_system(lift={**LIFT, "releases": 2}))
    for phase in range(4):
        rig.seal(phase)
    seen = rig.fold()
    assert len(seen.records("lift", "Lift")) == 2
    assert len(seen.records("ledger-edge", "LedgerEntry")) == 2
    assert seen.counts["release_withheld"] == 2
    assert "lift/0: asked one more release" in str(rig.machine.refused)
    again = rig.replayed(rigs.LearnerMachine(rig.system, 0, rig.key))
    assert again.releases("lift") == seen.releases("lift")


def test_a_snapshot_between_and_a_replay_change_no_byte(rigs, rig):
    other = rigs.LearnerRig(rig.system)
    for number in range(3):
        for target in (rig, other):
            for user in USERS[:4]:
                arm = target.decide(f"{user}:{number}", user, rigs.point(number), baseline=2)
                target.reward(f"{user}:{number}", arm, 1.0, user)
            target.seal(number)
            target.fold()
        fresh = rigs.LearnerMachine(other.system, 0, other.key)
        fresh.start(other.genesis)
        fresh.restore(other.machine.snapshot())
        other.machine = fresh
    assert other.journal == rig.journal
    assert other.seen.releases("lift") == rig.seen.releases("lift")
    replayed = rig.replayed(rigs.LearnerMachine(rig.system, 0, rig.key))
    assert replayed.releases("lift") == rig.seen.releases("lift")


def test_without_a_hold_out_nothing_is_counted_or_released(rigs):
    rig = rigs.LearnerRig()
    play(rigs, rig)
    rig.seal()
    assert not rig.fold().releases("lift")
    assert {answer.policy for answer in rig.seen.answers} == {0}


def test_one_user_moves_the_sums_by_no_more_than_the_sensitivity(rigs):
    system = rigs.make_system(lift=LIFT, release={"window_slots": 4, "levels": 4})
    tree = lift_tree(system.config.lift, 4)
    assert tree.sensitivity == 2 * 4 * LIFT["decisions_per_user"]
    rig = rigs.LearnerRig(system)
    for number in range(9):
        arm = rig.decide(f"e{number}", "ann", rigs.point(number), baseline=2)
        rig.reward(f"e{number}", arm, 1.0)
        rig.fold()
    assert np.abs(rig.machine.lift._waiting).sum() == tree.sensitivity


def test_the_interval_covers_the_true_uplift():
    """1,000 worlds with the counter's noise: a 95 % interval misses at most 8 % (chance of more below 1e-4)."""
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(1000):
        shown = np.array([20_000, 5_000])
        rewards = rng.binomial(shown, [0.30, 0.25])
        noise = rng.laplace(0, 40, 4)
        sums = np.array([shown[0], rewards[0], shown[1], rewards[1]]) + noise
        difference, half = lift_of([(sums, 2 * 40**2, 1)]).uplift
        missed += abs(difference - 0.05) > half
    assert missed <= 80


def test_too_little_shown_gives_no_figure():
    lift = lift_of([(np.array([50, 3, 2, 9]), 100.0**2, 1)])
    assert lift.model is None
    assert lift.uplift is None
