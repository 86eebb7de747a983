"""The lift of the model over a hold-out: who is in it, what is counted, and what leaves."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.counting import BadState
from hushstream.privacy.amounts import delta_value
from hushstream.schemas import codec
from hushstream.systems.p2b.lift import LiftCounter, holdout_arm, in_holdout, lift_guarantee, lift_of, lift_tree
from hushstream.systems.p2b.reports.lift_report import LiftReport
from hushstream.systems.p2b.system import LEARNER

LIFT = {"holdout": 0.5, "epsilon": 20.0, "decisions_per_user": 5, "every_seconds": 100.0, "releases": 64}
USERS = [f"user-{number}" for number in range(12)]


@pytest.fixture
def rig(rigs):
    return rigs.LearnerRig(rigs.make_system(lift=LIFT, slot={"after_interactions": 100}))


def held_out(rig):
    key, lift = rig.machine.user_key, rig.system.config.lift
    return {user for user in USERS if in_holdout(key(user), lift)}


def play(rigs, rig, rounds=3):
    for number in range(rounds):
        for user in USERS:
            event = f"{user}:{number}"
            arm = rig.decide(event, user, rigs.point(number), baseline=2)
            rig.reward(event, arm, 1.0 if number % 2 else 0.0, user)
            rig.fold()


def settle(rigs, rig):
    """Let the wait for rewards of all that was decided pass; the decision that moves log time waits itself."""
    rig.wait(6)
    rig.decide(f"later at {rig.now_ms}", "tick", rigs.point(0), baseline=2)


def waiting(rig):
    """The sums of all that waits to be counted, whenever."""
    of_users = [sums for users in rig.machine.lift._waiting.values() for sums in users.values()]
    return np.array(of_users or [[0] * 4]).sum(axis=0)


def twin_noise(rig):
    """The noise of the first release."""
    config = rig.system.config
    address = rig.system.lift_address(rig.machine.chain.genesis_nonce, 0)
    return LiftCounter(config.lift, config.release.levels, 5000, rig.key.derive("lift"), address).release(0)


def released(rig, record):
    """A first release without its noise."""
    return (np.frombuffer(record["sums"], "<i8") - twin_noise(rig).sums).tolist()


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
    settle(rigs, rig)
    rig.end_phase()
    (record,) = rig.fold().records("lift", "Lift")
    assert released(rig, record) == exact(rig).tolist()
    assert record["variance"] == twin_noise(rig).variance
    assert record["leaf"] == 1


def test_a_users_further_decisions_do_not_count(rigs, rig):
    rounds = LIFT["decisions_per_user"] + 3
    play(rigs, rig, rounds)
    assert waiting(rig).tolist() == exact(rig, rounds).tolist()


def test_a_reward_and_its_absence_count_at_the_same_moment_when_the_wait_is_over(rigs, rig):
    """A rewarded decision that counted at once would make the rate before the wait is over 1 and not a half."""
    for event in ("rewarded", "shown"):
        arm = rig.decide(event, "user-0", rigs.point(0), baseline=2)
        if event == "shown":
            rig.shown(event, arm, "user-0")
        else:
            rig.reward(event, arm, 1.0, "user-0")
    rig.end_phase()
    (early,) = rig.fold().records("lift", "Lift")
    assert released(rig, early) == [0, 0, 0, 0]
    settle(rigs, rig)
    sums = waiting(rig).reshape(2, 2)
    assert sums[1 if "user-0" in held_out(rig) else 0].tolist() == [2, 1]
    assert sums.sum() == 3
    rig.end_phase(1)
    rig.fold()
    assert not rig.machine.lift._waiting


def test_an_arm_that_was_not_decided_counts_neither_with_a_reward_nor_without(rigs, rig):
    for event in ("rewarded", "shown"):
        arm = rig.decide(event, "user-0", rigs.point(0), baseline=2)
        rig.shown(event, (arm + 1) % 4, "user-0")
        if event == "rewarded":
            rig.reward(event, arm, 1.0, "user-0")
    rig.fold()
    settle(rigs, rig)
    assert not waiting(rig).any()


def test_a_showing_whose_event_is_no_longer_remembered_counts(rigs):
    """Else zeros would be lost, and rewards would not, wherever more events come within the wait than are kept."""
    rig = rigs.LearnerRig(rigs.make_system(lift=LIFT, feedback={"remembered_events": 1}))
    for number in range(4):
        arm = rig.decide(f"e{number}", "user-0", rigs.point(0), baseline=2)
        rig.shown(f"e{number}", arm, "user-0")
        rig.fold()
    settle(rigs, rig)
    assert waiting(rig).sum() == 4


def test_however_many_decisions_wait_their_note_is_short_and_a_damaged_one_is_refused(rigs, rig):
    address = rig.system.lift_address(bytes(32), 0)
    counter, twin = (LiftCounter(rig.system.config.lift, 1, 1_800_000, rig.key, address) for _ in range(2))
    for time_ms in range(0, 1_800_000, 97):
        counter.count(bytes([time_ms % 2] * 16), False, 0, 1_800_000 + time_ms, 1.0)
    assert len(counter._waiting) <= 257
    assert max(len(users) for users in counter._waiting.values()) == 2
    twin.load(counter.dump())
    assert twin.dump() == counter.dump()
    np.testing.assert_array_equal(twin.release(3_700_000).sums, counter.release(3_700_000).sums)
    for state in (b"", b"\x01\x00\x00\x00" + bytes(39)):
        with pytest.raises(BadState):
            twin.load(state)


@pytest.mark.parametrize("through_a_snapshot", [False, True])
def test_what_waits_of_a_user_who_is_forgotten_is_never_counted(rigs, rig, through_a_snapshot):
    play(rigs, rig, 2)
    before = waiting(rig)
    if through_a_snapshot:
        state = rig.machine.snapshot()
        rig.machine = rigs.LearnerMachine(rig.system, 0, rig.key)
        rig.machine.start(rig.genesis)
        rig.machine.restore(state)
    rig.put("contexts", codec.encode("Forget", {"user": "user-3", "config_digest": rig.system.digest}))
    rig.fold()
    lost = np.zeros(4, dtype=np.int64)
    lost[2 * ("user-3" in held_out(rig)) :][:2] = (2, 1)
    assert (before - waiting(rig)).tolist() == lost.tolist()
    settle(rigs, rig)
    rig.end_phase()
    (record,) = rig.fold().records("lift", "Lift")
    assert released(rig, record) == (exact(rig, 2) - lost).tolist()


def test_releases_follow_log_time_and_phase_ends_and_are_paid_for_once(rigs, rig):
    play(rigs, rig, 1)
    rig.wait(250)
    rig.decide("tick", "user-0", rigs.point(0), baseline=2)
    rig.end_phase()
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
    # Their five decisions may fall in five leaves, each in all levels, and move their group's two sums.
    changed = lift.decisions_per_user * tree.levels * 2
    assert delta_value(promise.cost.delta_units) >= changed * tree.noise.residue
    assert any(f"at most {lift.decisions_per_user} leaves" in condition for condition in promise.conditions)


def test_after_its_last_release_the_counter_is_silent(rigs):
    rig = rigs.LearnerRig(rigs.make_system(lift={**LIFT, "releases": 2}))
    for phase in range(4):
        rig.end_phase(phase)
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
            target.end_phase(number)
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
    rig.end_phase()
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
    assert np.abs(waiting(rig)).sum() == tree.sensitivity


def test_the_interval_covers_the_true_uplift():
    """1,000 worlds with the counter's noise: a 95 % interval misses at most 8 % (chance of more below 1e-4)."""
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(1000):
        shown = np.array([20_000, 5_000])
        rewards = rng.binomial(shown, [0.30, 0.25])
        noise = rng.laplace(0, 40, 4)
        sums = np.array([shown[0], rewards[0], shown[1], rewards[1]]) + noise
        difference, half = lift_of([(sums, 2 * 40**2, 1)], 1).uplift
        missed += abs(difference - 0.05) > half
    assert missed <= 80


def clustered(rng, users, most, rate, correlation):
    """Shown and rewards of a group whose users differ: beta-binomial, 1 to ``most`` decisions or all of ``most``."""
    decisions = np.full(users, most) if correlation == 1 else rng.integers(1, most + 1, users)
    chance = rng.binomial(1, rate, users)
    if correlation < 1:
        weight = 1 / correlation - 1
        chance = rng.beta(rate * weight, (1 - rate) * weight, users)
    return decisions.sum(), rng.binomial(decisions, chance).sum()


@pytest.mark.parametrize("correlation", [0.2, 1.0])
@pytest.mark.parametrize("rates", [(0.30, 0.25), (0.03, 0.02)])
def test_the_interval_covers_where_a_users_decisions_are_alike(rates, correlation):
    """1,000 worlds of users with up to 20 decisions each, correlated within a user, and a little noise.

    False alarm: of a 95 % interval more than 80 misses have a chance of 2e-5. Power: one whose sampling term is half as
    large misses 16.6 % at correlation 1, and has 80 misses or fewer with a chance of 1e-15; one that takes decisions as
    independent misses more than 60 % there and more than 20 % at correlation 0.2 (here: 643, 630, 299 and 219 times).
    """
    rng = np.random.default_rng(11)
    missed = {20: 0, 1: 0}
    for _ in range(1000):
        groups = [clustered(rng, users, 20, rate, correlation) for users, rate in zip((4000, 1000), rates, strict=True)]
        sums = np.array(groups).reshape(4) + rng.laplace(0, 10, 4)
        for most in missed:
            difference, half = lift_of([(sums, 2 * 10**2, 1)], most).uplift
            missed[most] += abs(difference - (rates[0] - rates[1])) > half
    assert missed[20] <= 80
    assert missed[1] > 200


def test_no_reward_of_few_users_is_no_certainty():
    """3 % of 50 users give no reward in any of their 20 decisions with chance .22: the interval must reach there."""
    rate = lift_of([(np.array([1000, 0, 1000, 0]), 0.0, 1)], 20).model
    assert (rate.rate, rate.shown) == (0.0, 1000)
    assert rate.half_width > 0.03


def test_too_little_shown_gives_no_figure():
    lift = lift_of([(np.array([50, 3, 2, 9]), 100.0**2, 1)], 20)
    assert lift.model is None
    assert lift.uplift is None
    assert (lift.needed, lift.counted) == (300.0, (50.0, 2.0))
    lines = LiftReport(lift, 1, 500_000, 1, True).as_text().splitlines()
    assert lines[0].endswith("about 50 decisions counted, some 300 needed, so 250 more.")
    assert lines[1].endswith("about 2 decisions counted, some 300 needed, so 298 more.")


def test_gauges_show_what_a_release_says_and_0_of_a_group_that_noise_hides(rigs, rig):
    sums, fields = np.array([400, 100, 90, 9]), {"levels": 1, "variance": 4.0}
    record = {"release_id": bytes(16), "config_digest": rig.system.digest, "counter": bytes(16), "leaf": 1, **fields}
    record |= {"epsilon_micro": 1, "delta_units": bytes(11), "private_as_stated": True}

    def shown(system, sums):
        value = codec.encode("Lift", {**record, "sums": sums.astype("<i8").tobytes()})
        return LEARNER.figures(system, "lift", value)

    found, lift = shown(rig.system, sums), lift_of([(sums, 4.0, 1)], LIFT["decisions_per_user"])
    for group, rate in (("model", lift.model), ("holdout", lift.holdout)):
        assert found[f"lift_decisions_{group}"] == rate.shown
        assert found[f"lift_reward_ratio_{group}"] == rate.rate
        assert 1.959964 * np.sqrt(found[f"lift_reward_variance_{group}"]) == pytest.approx(rate.half_width, rel=1e-6)
    hidden = shown(rig.system, np.array([400, 100, 5, 1]))
    assert {name for name, value in hidden.items() if not value} == {name for name in found if "holdout" in name}
    assert {name: value for name, value in hidden.items() if value} == {
        name: value for name, value in found.items() if "model" in name
    }
    assert LEARNER.figures(rig.system, "reports", b"") == {}
    in_shadow = rigs.make_system(shadow={"epsilon": 0.5})
    assert shown(in_shadow, np.tile(sums, 5)) == {}
