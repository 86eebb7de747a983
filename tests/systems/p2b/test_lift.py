"""What the shared model brings: who is in which group, what is counted, what leaves, and what is told of it."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hushstream.counting import BadState
from hushstream.privacy.amounts import delta_value
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.lift import (
    SUMS,
    Group,
    LiftCounter,
    answers_of,
    group_of,
    lift_guarantee,
    lift_of,
    lift_tree,
    lift_user,
    required_lift,
    smallest_effect,
    users_needed,
)
from hushstream.systems.p2b.plan import warnings
from hushstream.systems.p2b.reports import LiftReport
from hushstream.systems.p2b.system import LEARNER, declare

MOST = 5
GROUPS = {"epsilon": 20.0, "decisions_per_user": MOST, "every_seconds": 100.0, "releases": 64}
HALVES = {**GROUPS, "baseline": 0.3, "own": 0.3}
ANSWERS = {**GROUPS, "of": "answers", "releases": 8}
USERS = [f"user-{number}" for number in range(16)]
BASELINE, ARMS = 2, 5


def begun(rigs, measurement=HALVES, version=1, **changes):
    """A learner that knows this version of the model."""
    system = rigs.make_system(measurement=measurement, **{"slot": {"after_interactions": 100}, **changes})
    rig = rigs.LearnerRig(system)
    if version:
        rigs.adopt(rig, version)
    return rig


@pytest.fixture
def rig(rigs):
    return begun(rigs)


def group(rig, user):
    return group_of(rig.machine.terms.user_key(user), rig.system.config.measurement)


def play(rigs, rig, rounds=3, users=USERS, **fields):
    """Every other decision is rewarded; all are shown. The sums by hand, as if all users count: (3, 2)."""
    sums = np.zeros((len(Group), SUMS), dtype=np.int64)
    for number in range(rounds):
        for user in users:
            event = f"{user}:{number}"
            arm = rig.decide(event, user, rigs.point(number), **{"baseline": BASELINE, **fields})
            rig.reward(event, arm, 1.0 if number % 2 else 0.0, user)
            rig.fold()
            if number < MOST:
                sums[group(rig, user), 0 if number % 2 else 1] += 1
    return sums


def settle(rigs, rig):
    """Let the wait for rewards of all that was decided pass; the decision that moves log time asks for no arm."""
    rig.wait(6)
    rig.decide(f"later at {rig.now_ms}", "tick", rigs.point(0))


def waiting(rig):
    """The sums of all that waits to be counted, whenever: (cells, 2)."""
    lift = rig.machine.lift
    found = np.zeros((lift._cells, SUMS), dtype=np.int64)
    for users in lift._waiting.values():
        for who, sums in users.items():
            found[int.from_bytes(who[16:], "little")] += sums
    return found


def twin_noise(rig):
    """The noise of the first release."""
    address = rig.system.lift_address(rig.machine.chain.genesis_nonce, 0)
    return LiftCounter(required_lift(rig.system.config), 5000, rig.key.derive("lift"), address).release(0)


def released(rigs, rig):
    """A first release without its noise: (cells, 2)."""
    settle(rigs, rig)
    rig.end_phase()
    (record,) = rig.fold().records("lift", "Lift")
    return (np.frombuffer(record["sums"], "<i8") - twin_noise(rig).sums).reshape(-1, SUMS)


def read(system, *rigs):
    """What the deployment's declared view says of the topics that it names, one partition a rig."""
    view = declare(system).measurement
    assert view is not None
    report = view.read(out.value for rig in rigs for out in rig.seen.outputs if out.topic in view.topics)
    assert isinstance(report, LiftReport)
    return report


# Who gets what, and who counts.


def test_each_group_gets_what_its_name_says_for_life(rigs, rig):
    play(rigs, rig)
    groups = {user: group(rig, user) for user in USERS}
    assert set(groups.values()) == set(Group)
    for answer in rig.seen.answers:
        found = groups[answer.event_id.partition(":")[0]]
        assert (answer.policy == 1) == (found is Group.BASELINE)
        if found is Group.BASELINE:
            assert (answer.arm, answer.propensity) == (BASELINE, 10**9)
        else:
            assert answer.model_version == (found is Group.MODEL)
    rigs.adopt(rig, 2)
    cold = rig.machine.terms.policy.shared("cold").state
    for user in USERS:
        if groups[user] is Group.OWN:
            agent = rig.machine.agents.get(user)
            assert (agent.track, agent.base_version) == ("cold", 0)
    alone = next(name for name in map("new-{}".format, range(99)) if group(rig, name) is Group.OWN)
    rig.decide("first", alone, rigs.point(0))
    assert rig.machine.agents.get(alone).current_state() is cold


def test_nothing_is_credited_to_a_model_of_version_0(rigs):
    """A shop at its 29th second: there was no model, and counted decisions gave "1.8x with the shared private model".

    Whoever began before there is a model keeps to what they had. They count in no group, also after it has come.
    """
    rig = begun(rigs, version=0)
    play(rigs, rig, 4)
    rigs.adopt(rig)
    play(rigs, rig, 5)
    assert not waiting(rig).any()
    late = [f"late-{number}" for number in range(12)]
    by_hand = play(rigs, rig, 2, late)
    assert released(rigs, rig).tolist() == by_hand.tolist()
    assert by_hand[Group.MODEL].any()
    versions = {answer.event_id.partition(":")[0]: answer.model_version for answer in rig.seen.answers}
    assert all(versions[user] == 1 for user in late if group(rig, user) is Group.MODEL)


def test_before_there_is_a_model_there_is_no_figure(rigs):
    rig = begun(rigs, version=0)
    play(rigs, rig)
    released(rigs, rig)
    report = read(rig.system, rig)
    assert [report.found.rates[group] for group in Group] == [None] * 3
    assert set(report.as_json()["shared_private_model_over"].values()) == {None}
    assert report.exit_code == 1


@pytest.mark.parametrize("measured", [HALVES, {**GROUPS, "own": 0.5}], ids=["baseline", "own"])
def test_a_request_without_a_baseline_counts_only_where_no_group_is_shown_it(rigs, measured):
    """In every group: else the groups would differ in what was asked of them."""
    rig = begun(rigs, measured)
    play(rigs, rig, baseline=-1)
    assert waiting(rig).any() == ("baseline" not in measured)
    assert {answer.policy for answer in rig.seen.answers} == {0}


def test_groups_are_shares_of_users(rigs):
    settings = rigs.make_system(measurement={"baseline": 0.2, "own": 0.3}).config.measurement
    machine = rigs.LearnerRig().machine
    found = np.bincount([group_of(machine.terms.user_key(f"u{number}"), settings) for number in range(4000)]) / 4000
    # Binomial(4000, .2 to .5): further than .05 off has a chance below 1e-9.
    assert np.abs(found - [0.5, 0.3, 0.2]).max() < 0.05


# What is counted, and what leaves.


def test_the_released_sums_are_the_exact_ones_plus_the_counters_noise(rigs, rig):
    by_hand = play(rigs, rig, MOST + 3)
    assert waiting(rig).tolist() == by_hand.tolist(), "the first five decisions of each count"
    assert released(rigs, rig).tolist() == by_hand.tolist()
    (record,) = rig.seen.records("lift", "Lift")
    assert (record["variance"], record["leaf"]) == (twin_noise(rig).variance, 1)


def test_a_reward_and_its_absence_count_at_the_same_moment_when_the_wait_is_over(rigs, rig):
    """A rewarded decision that counted at once would make the rate before the wait is over 1 and not a half."""
    for event in ("rewarded", "shown"):
        arm = rig.decide(event, "user-0", rigs.point(0), baseline=BASELINE)
        if event == "shown":
            rig.shown(event, arm, "user-0")
        else:
            rig.reward(event, arm, 1.0, "user-0")
    rig.end_phase()
    (early,) = rig.fold().records("lift", "Lift")
    assert (np.frombuffer(early["sums"], "<i8") == twin_noise(rig).sums).all()
    settle(rigs, rig)
    assert waiting(rig)[group(rig, "user-0")].tolist() == [1, 1]


def test_an_arm_that_was_not_decided_counts_neither_with_a_reward_nor_without_nor_unseen(rigs, rig):
    for event in ("rewarded", "shown", "unseen"):
        arm = rig.decide(event, "user-0", rigs.point(0), baseline=BASELINE)
        if event != "unseen":
            rig.shown(event, (arm + 1) % 4, "user-0")
        if event == "rewarded":
            rig.reward(event, arm, 1.0, "user-0")
    rig.fold()
    settle(rigs, rig)
    assert not waiting(rig).any()
    assert not rig.machine.lift._open.get(lift_user(rig.machine.terms.user_key("user-0")))


def test_a_showing_whose_event_is_no_longer_remembered_counts(rigs):
    """Else zeros would be lost, and rewards would not, wherever more events come within the wait than are kept."""
    rig = begun(rigs, feedback={"remembered_events": 1})
    for number in range(4):
        arm = rig.decide(f"e{number}", "user-0", rigs.point(0), baseline=BASELINE)
        rig.shown(f"e{number}", arm, "user-0")
        rig.fold()
    settle(rigs, rig)
    assert waiting(rig).sum() == 4


def test_however_many_decisions_wait_their_note_is_short_and_a_damaged_one_is_refused(rigs, rig):
    address = rig.system.lift_address(bytes(32), 0)
    counter, twin = (LiftCounter(required_lift(rig.system.config), 1_800_000, rig.key, address) for _ in range(2))
    for time_ms in range(0, 1_800_000, 97):
        counter.decided(bytes([time_ms % 2] * 16), 0)
        counter.count(bytes([time_ms % 2] * 16), 0, 0, 1_800_000 + time_ms, 1.0)
    counter.begun(bytes([7] * 16), 0)
    counter.decided(bytes([8] * 16), 3)
    assert len(counter._waiting) <= 257
    twin.load(counter.dump())
    assert twin.dump() == counter.dump()
    assert (twin._early, twin._open) == ({bytes([7] * 16)}, {bytes([8] * 16): {3}})
    np.testing.assert_array_equal(twin.release(3_700_000).sums, counter.release(3_700_000).sums)
    for state in (b"", b"\x01\x00\x00\x00" + bytes(39)):
        with pytest.raises(BadState):
            twin.load(state)


@pytest.mark.parametrize("through_a_snapshot", [False, True])
@pytest.mark.parametrize("measured", [HALVES, ANSWERS], ids=["groups", "answers"])
def test_what_waits_of_a_user_who_is_forgotten_is_never_counted(rigs, measured, through_a_snapshot):
    rig = begun(rigs, measured)
    play(rigs, rig, 2)
    before = waiting(rig)
    if through_a_snapshot:
        state = rig.machine.snapshot()
        rig.machine = rigs.LearnerMachine(rig.system, 0, rig.key)
        rig.machine.start(rig.genesis)
        rig.machine.restore(state)
    rig.put("contexts", codec.encode("Forget", {"user": "user-3", "config_digest": rig.system.digest}))
    rig.fold()
    lost = before - waiting(rig)
    assert (lost.sum(axis=0).tolist(), lost.min()) == ([1, 1], 0)
    assert released(rigs, rig).tolist() == (before - lost).tolist()


def test_releases_follow_log_time_and_phase_ends_and_are_paid_for_once(rigs, rig):
    play(rigs, rig, 1)
    rig.wait(250)
    rig.decide("tick", "user-0", rigs.point(0), baseline=BASELINE)
    rig.end_phase()
    rig.fold()
    records = rig.seen.records("lift", "Lift")
    entries = rig.seen.records("ledger-edge", "LedgerEntry")
    assert [record["leaf"] for record in records] == [1, 2]
    assert len({record["counter"] for record in records}) == 1
    assert len({record["release_id"] for record in records}) == 2
    price = lift_guarantee(*required_lift(rig.system.config))
    assert [entry["debit"]["epsilon_micro"] for entry in entries] == [price.epsilon_micro, 0]
    assert entries[0]["debit"]["scope"] == "lift/0"
    assert [debit for record in rig.seen.journals for debit in record["debits"]] == [one["debit"] for one in entries]


def test_after_its_last_release_the_counter_is_silent(rigs):
    rig = begun(rigs, {**HALVES, "releases": 2}, version=0)
    for phase in range(4):
        rig.end_phase(phase)
    seen = rig.fold()
    assert len(seen.records("lift", "Lift")) == 2
    assert len(seen.records("ledger-edge", "LedgerEntry")) == 2
    assert seen.counts["release_withheld"] == 2
    assert "lift/0: asked one more release" in str(rig.machine.refused)
    again = rig.replayed(rigs.LearnerMachine(rig.system, 0, rig.key))
    assert again.releases("lift") == seen.releases("lift")


def test_where_nothing_is_measured_nothing_is_counted_or_released(rigs):
    rig = rigs.LearnerRig()
    play(rigs, rig)
    rig.end_phase()
    assert not rig.fold().releases("lift")
    assert {answer.policy for answer in rig.seen.answers} == {0}
    for system in (declare(rig.system), declare_colin(related_system())):
        assert system.measurement is None


def related_system():
    from tests.systems.colin import rigs as related

    return related.make_system()


@pytest.mark.parametrize("measured", [HALVES, ANSWERS], ids=["groups", "answers"])
def test_one_user_moves_the_sums_by_the_sensitivity_and_no_more(rigs, measured):
    """Whatever was answered, shown and rewarded; and the delta covers every draw that they can change."""
    levels = 4
    rig = begun(rigs, measured, release={"window_slots": 4, "levels": levels})
    counted = required_lift(rig.system.config)
    tree, promise = lift_tree(*counted), lift_guarantee(*counted)
    assert tree.sensitivity == promise.sensitivity == levels * MOST
    assert tree.dimension == SUMS * (len(Group) if measured is HALVES else 2 * ARMS)
    for number in range(2 * MOST):
        arm = rig.decide(f"e{number}", "ann", rigs.point(number), baseline=BASELINE)
        rig.reward(f"e{number}", arm, (0.0, 0.25, 0.3, 1.0)[number % 4])
        rig.fold()
    assert np.abs(waiting(rig)).sum() == tree.sensitivity
    # Their five decisions may fall in five leaves, each in all levels, and move two sums of a cell.
    assert delta_value(promise.cost.delta_units) >= MOST * tree.levels * SUMS * tree.noise.truncation
    assert any(f"at most {MOST} leaves" in condition for condition in promise.conditions)


# What is told of groups.


def test_the_newest_release_of_every_counter_is_added_up_and_names_its_comparisons(rigs):
    def played(partition):
        measured = {**HALVES, "decisions_per_user": 4}
        system = rigs.make_system(measurement=measured, partitions={"learner": 2}, slot={"after_interactions": 100})
        rig = rigs.LearnerRig(system, partition=partition)
        rigs.adopt(rig)
        rig.put = partial(rig.put, partition=partition)
        users = [user for user in (f"user-{number}" for number in range(160)) if rig.machine.is_home_of(user)]
        play(rigs, rig, 4, users)
        rig.wait(6)
        rig.end_phase()
        rig.fold()
        return rig

    parts = [played(partition) for partition in (0, 1)]
    report = read(parts[0].system, *parts)
    records = [record for rig in parts for record in rig.seen.records("lift", "Lift")]
    sums = [np.frombuffer(record["sums"], "<i8") for record in records]
    assert report.found == lift_of([(one, records[0]["variance"], 1) for one in sums], 4)
    assert sum(report.found.counted.values()) == pytest.approx(640, abs=60)
    price = lift_guarantee(*required_lift(parts[0].system.config))
    assert (report.releases, report.epsilon_micro, report.delta_units) == (2, price.epsilon_micro, price.delta_units)
    text, plain = report.as_text(), report.as_json()
    assert text.startswith("REPRODUCIBLE, NOT PRIVATE\nThe shared private model: ")
    for control in ("the application's own choice", "own learning without the shared model"):
        assert f"\nThe shared private model over {control}: " in text
    assert "whose request named a baseline; of each user the first 4" in text
    for control in ("baseline", "own"):
        over = plain["shared_private_model_over"][control]
        assert 0 < over["noise95"] < over["ci95"]
    assert report.exit_code == 0


@pytest.mark.parametrize("correlation", [0.2, 1.0])
@pytest.mark.parametrize("rates", [(0.30, 0.25), (0.03, 0.02)])
def test_the_interval_covers_where_a_users_decisions_are_alike(rates, correlation):
    """1,000 worlds of users with up to 20 decisions each, correlated within a user, and a little noise.

    False alarm: of a 95 % interval more than 80 misses have a chance of 2e-5. Power: one whose sampling term is half as
    large misses 16.6 % at correlation 1, and has 80 misses or fewer with a chance of 1e-15; one that takes decisions as
    independent misses more than 60 % there and more than 20 % at correlation 0.2.
    """
    rng = np.random.default_rng(11)
    missed = {20: 0, 1: 0}
    for _ in range(1000):
        cells = [clustered(rng, users, 20, rate, correlation) for users, rate in zip((4000, 1000), rates, strict=True)]
        sums = np.array([cells[0], (0, 0), cells[1]]) + rng.laplace(0, 10, (3, 2))
        for most in missed:
            found = lift_of([(sums.ravel(), 2 * 10**2, 1)], most).over(Group.BASELINE)
            missed[most] += abs(found.difference - (rates[0] - rates[1])) > found.ci95
    assert missed[20] <= 80
    assert missed[1] > 200


def clustered(rng, users, most, rate, correlation):
    """Rewards of a group whose users differ, and what is missing: 1 to ``most`` decisions, or all of ``most``."""
    decisions = np.full(users, most) if correlation == 1 else rng.integers(1, most + 1, users)
    chance = rng.binomial(1, rate, users)
    if correlation < 1:
        weight = 1 / correlation - 1
        chance = rng.beta(rate * weight, (1 - rate) * weight, users)
    rewards = rng.binomial(decisions, chance).sum()
    return rewards, decisions.sum() - rewards


@pytest.mark.parametrize(
    ("real", "visits"),
    [(False, MOST), (True, MOST), (True, 3)],
    ids=["no difference", "the smallest that is told", "the smallest of users with fewer visits than are counted"],
)
def test_a_shop_of_5000_visitors_is_told_what_is_there(rigs, real, visits):
    """400 shops, the true rates known, with the noise of the last release; all decisions of a user are alike.

    Coverage: of a 95 % interval more than 36 misses have a chance of 1e-3. False alarm: without a difference its
    interval excludes 0 as often. Power: 80 % at the effect that `plan` states; fewer than 290 have a chance of 1e-3.
    With half the sampling term (a forgotten cluster of two) 17 % would miss.
    """
    settings = {"baseline": 0.25, "own": 0.25, "epsilon": 1.0}
    config = rigs.make_system(measurement=settings).config
    users, rate, rng = 5_000, 0.1, np.random.default_rng(3)
    effect = smallest_effect(config, Group.BASELINE, users * visits / MOST, rate) if real else 0.0
    assert effect < rate, "it tells less than twice the rate"
    counter = LiftCounter(
        required_lift(config),
        5000,
        rigs.seeded_key(1, "edge"),
        rigs.make_system(measurement=settings).lift_address(bytes(32), 0),
    )
    variance = [counter.release(0).variance for _ in range(config.measurement.releases)][-1]
    rates, sizes = (rate + effect / 2, rate - effect / 2, rate - effect / 2), (users // 2, users // 4, users // 4)
    missed = certain = 0
    for _ in range(400):
        cells = [clustered(rng, size, visits, one, 1.0) for size, one in zip(sizes, rates, strict=True)]
        sums = np.array(cells) + rng.laplace(0, np.sqrt(variance / 2), (3, 2))
        found = lift_of([(sums.ravel(), variance, 1)], MOST).over(Group.BASELINE)
        missed += abs(found.difference - effect) > found.ci95
        certain += found.decisions_more == 0
        assert found.noise95 < found.ci95
    assert missed <= 36
    assert certain >= 290 if real else certain <= 36


def test_the_number_of_users_that_is_needed_and_the_effect_that_they_show_are_inverse(rigs):
    config = rigs.make_system(measurement={"baseline": 0.1, "own": 0.2}).config
    for control in (Group.BASELINE, Group.OWN):
        users = users_needed(config, control, 0.02, 0.05)
        assert smallest_effect(config, control, users, 0.05) <= 0.02 < smallest_effect(config, control, users - 1, 0.05)
    fewer = rigs.make_system(measurement={"baseline": 0.1, "own": 0.2, "releases": 8}).config
    assert users_needed(fewer, Group.OWN, 0.02, 0.05) < users_needed(config, Group.OWN, 0.02, 0.05)


def test_no_reward_of_few_users_is_no_certainty():
    """3 % of 50 users give no reward in any of their 20 decisions with chance .22: the interval must reach there."""
    rate = lift_of([(np.array([0, 1000, 0, 0, 0, 1000]), 0.0, 1)], 20).rates[Group.MODEL]
    assert rate.rate == 0.0
    assert rate.ci95 > 0.03


def test_decisions_counted_needed_and_missing_add_up():
    """It said 163 of 1,804 counted."""
    lift = lift_of([(np.array([3, 47, 500, 500, -5, 7]), 50.0**2, 1)], 20)
    assert (lift.rates[Group.MODEL], lift.over(Group.BASELINE)) == (None, None)
    settings = measured_settings(baseline=0.1, own=0.1)
    report = LiftReport(settings, lift, 1, 500_000, 1, True)
    lines = report.as_text().splitlines()
    assert "and at one look: who looks ten times finds 0 excluded at least once in 19 % of cases" in report.as_text()
    assert lines[0].endswith(
        "about 50 decisions counted (the noise is within 139), 213 needed to tell a rate from the noise, so 163 more."
    )
    assert "about 2 decisions counted" in lines[1]
    for one in report.as_json()["groups"].values():
        found = one["decisions"]
        assert found["more"] == max(0, np.ceil(found["needed"] - found["counted"]))
    assert report.as_json()["groups"]["own"]["decisions"]["more"] == 0


def test_a_rate_outside_0_to_1_is_not_known_yet_and_a_negative_count_is_none():
    """A harm's rate of -0.2482 was printed as one, and of 0 counted and 1,358 needed 1,417 were said to miss."""
    lift = lift_of([(np.array([-100, 400, 500, 500, -30, -29]), 50.0**2, 1)], 20)
    lines = LiftReport(measured_settings(baseline=0.1, own=0.1), lift, 1, 500_000, 1, True).as_text().splitlines()
    assert "not known yet (-" in lines[0]
    assert "-0.3333" not in lines[0].partition("(")[0]
    assert "about 0 decisions counted" in lines[1]
    assert lines[1].endswith("213 needed to tell a rate from the noise, so 213 more.")


def measured_settings(**changes):
    from hushstream.systems.p2b.configuration import MeasurementConfig

    return MeasurementConfig(**changes)


@pytest.mark.parametrize(
    ("measured", "mode", "said"),
    [
        ({"own": 0.1, "every_seconds": 15.0}, "live", "measurement.every_seconds: 128 releases"),
        ({"own": 0.1, "every_seconds": 40 * 86_400.0}, "live", "the first figure comes after 40 days"),
        ({"own": 0.1, "epsilon": 0.01}, "live", "they show no difference below"),
        ({"own": 0.1}, "shadow", "it is groups, shadow"),
        ({"of": "answers"}, "live", "it is answers, live"),
    ],
)
def test_a_measurement_that_tells_nothing_is_warned_about(rigs, measured, mode, said):
    config = rigs.make_system(measurement=measured, mode=mode, expected_slots=500_000).config
    assert [said in one.text for one in warnings(config) if one.text.startswith("measurement")].count(True) == 1


def test_one_that_counts_nobody_is_warned_about(rigs):
    config = rigs.make_system(measurement={"own": 0.1}, expected_slots=1).config
    said = [one.text for one in warnings(config) if one.text.startswith("measurement")]
    assert ["no user begins with a model in time" in one for one in said] == [True]


def test_a_useful_one_is_not(rigs):
    config = rigs.make_system(measurement={"own": 0.1, "baseline": 0.1}, expected_slots=500_000).config
    assert not [one for one in warnings(config) if one.text.startswith("measurement")]


def test_without_a_release_it_says_what_is_missing_and_in_the_shadow_that_groups_are_alike(rigs):
    with pytest.raises(HushstreamError, match=r"wait for a reward is over \(5 s\), and releases are 100 s apart"):
        read(rigs.make_system(measurement=HALVES))
    with pytest.raises(HushstreamError, match="expected a live deployment where groups are measured"):
        read(rigs.make_system(measurement=HALVES, mode="shadow"))


def test_gauges_show_what_a_release_says_and_0_of_a_group_that_noise_hides(rigs, rig):
    sums = np.array([100, 300, 20, 100, 9, 81])
    record = {"release_id": bytes(16), "config_digest": rig.system.digest, "counter": bytes(16), "leaf": 1, "levels": 1}
    record |= {"variance": 4.0, "epsilon_micro": 1, "delta_units": bytes(11), "private_as_stated": True}

    def shown(system, sums):
        value = codec.encode("Lift", {**record, "sums": sums.astype("<i8").tobytes()})
        return LEARNER.figures(system, "lift", value)

    found, lift = shown(rig.system, sums), lift_of([(sums, 4.0, 1)], MOST)
    for one in Group:
        assert found[f"lift_decisions_{one.label}"] == lift.counted[one]
        assert found[f"lift_reward_ratio_{one.label}"] == lift.rates[one].rate
        half = 1.959964 * np.sqrt(found[f"lift_reward_variance_{one.label}"])
        assert half == pytest.approx(lift.rates[one].ci95, rel=1e-6)
    hidden = shown(rig.system, np.array([100, 300, 20, 100, 1, 4]))
    assert {name for name, value in hidden.items() if not value} == {name for name in found if "baseline" in name}
    assert LEARNER.figures(rig.system, "reports", b"") == {}
    assert shown(rigs.make_system(measurement={"of": "answers"}), np.tile(sums[:4], 5)) == {}


# Answers, in the shadow.


def test_answers_are_counted_by_item_agreement_and_reward(rigs):
    rig = begun(rigs, ANSWERS)
    by_hand = np.zeros((2 * ARMS, SUMS), dtype=np.int64)
    for number in range(MOST + 2):
        for user in ("ann", "bob", "cat", "dan"):
            event, at = f"{user}:{number}", number + len(user) + ord(user[0])
            answered = rig.decide(event, user, rigs.point(at))
            own = answered if at % 2 else (answered + 1) % ARMS
            rig.shown(event, own, user)
            if at % 3 == 0:
                rig.reward(event, own, 1.0, user)
            if number < MOST:
                by_hand[2 * answered + (at % 2 == 0), int(at % 3 != 0)] += 1
        rig.fold()
    assert by_hand.sum() == 20, "the first five decisions of each count"
    assert released(rigs, rig).tolist() == by_hand.tolist()
    report = read(rig.system, rig)
    assert report.as_text().startswith("REPRODUCIBLE, NOT PRIVATE\nAbout ")
    assert (report.exit_code, report.as_json()["epsilon_micro"]) == (1, 20_000_000)


def world(seed, decisions, own):
    """Exact sums of a log, and the true lift of its answers.

    Kinds of visits are answered the item that is theirs; the application draws one with the chances of its own.
    """
    rng = np.random.default_rng(seed)
    clicks = 0.1 + 0.3 * np.eye(4)
    kinds = rng.integers(4, size=decisions)
    shown = np.array([rng.choice(4, p=own[kind]) for kind in kinds])
    rewarded = rng.random(decisions) < clicks[kinds, shown]
    sums = np.zeros((4, 4))
    np.add.at(sums, (kinds, 2 * (shown != kinds) + ~rewarded), 1)
    lift = float((clicks[kinds, kinds] - np.array([own[kind] @ clicks[kind] for kind in kinds])).mean())
    return sums, lift


SOME = np.array([[0.4, 0.2, 0.2, 0.2]] * 4)


def test_the_true_lift_of_answers_lies_in_the_interval():
    """Of 40 logs of independent decisions, 8,000 each, with noise of 30 deviations: in 34 at least. Were the chance in
    one .95, fewer would have a chance of .003; an interval of half the width (.67) reaches 34 with a chance of .01."""
    rng, inside, certain = np.random.default_rng(7), 0, 0
    for seed in range(40):
        sums, lift = world(seed, 8_000, SOME)
        found = answers_of([((sums + rng.normal(0, 30, sums.shape)).ravel().astype(np.int64), 900.0, 1)], 1)
        assert found.interval is not None
        inside += found.interval[0] <= lift <= found.interval[1]
        certain += found.certain
        assert found.unseen < 0.01
    assert inside >= 34
    assert certain == 40, "the lift is .2 or so, and the interval is .05 wide"


def test_what_is_answered_and_never_shown_may_earn_anything():
    sums, lift = world(1, 20_000, np.array([[1.0, 0.0, 0.0, 0.0]] * 4))
    found = answers_of([(sums.ravel().astype(np.int64), 1.0, 1)], 1)
    assert found.unseen == pytest.approx(0.75, abs=0.02)
    low, high = found.interval
    assert low < lift < high
    assert high - low > 0.75
    assert (found.certain, found.decisions_more) == (False, None)


def test_where_an_application_chooses_well_by_visit_the_figure_is_off_as_the_page_says():
    """Half of 200,000 visits like item 0 (.3, else .05), half item 1; nine in ten see what they like. Item 0 for all
    earns .175, what is shown .275: the assumption that the report names does not hold, and 0 is read."""
    sums = np.array([[27_500, 72_500], [27_500, 72_500], [0, 0], [0, 0]])
    found = answers_of([(sums.ravel(), 0.0, 1)], 1)
    assert found.lift == pytest.approx(0.0, abs=1e-9)
    assert found.interval[0] == pytest.approx(-0.003, abs=5e-4)
    page = (Path(__file__).parents[3] / "deploy" / "docs" / "shadow.md").read_text(encoding="utf-8")
    assert f"truly worse by {found.earned - 0.175:.3f}".replace("0.", ".") in page
    assert "says 0 within .003" in page


def test_decisions_more_of_a_small_shop_are_enough_and_nine_tenths_are_not():
    """Where noise is most of the width, it asked for four times as many, as if noise fell with their root."""
    sums = np.array([1600, 14_400, 180, 1_820, 160, 1_840], dtype=float)

    def over(times):
        return lift_of([(np.round(sums * times), 4_095.0, 1)], 4).over(Group.BASELINE)

    first = over(1)
    assert 0.8 * first.ci95 < first.noise95 < first.ci95
    times = 1 + first.decisions_more / (sums[:2].sum() + sums[4:].sum())
    assert over(1.02 * times).decisions_more == 0 < over(0.9 * times).decisions_more


def test_decisions_more_of_answers_count_the_noise_that_is_told_beside_them():
    """The noise is 98 % of the width here; as if it fell with their root, six times as many were asked for."""
    sums = np.array([[1400, 2600, 1200, 2800], [1360, 2640, 1180, 2820]], dtype=float)

    def answered(times):
        return answers_of([((sums * times).round().astype(np.int64).ravel(), 1e5, 1)], 1)

    first = answered(1)
    low, high = first.interval
    assert 0.95 < 2 * first.noise95 / (high - low) < 1
    times = 1 + first.decisions_more / sums.sum()
    assert answered(1.05 * times).certain
    assert not answered(0.9 * times).certain


def test_it_says_how_many_decisions_more_it_takes_and_these_are_enough():
    sums, _ = world(3, 150, SOME)
    found = answers_of([(sums.ravel().astype(np.int64), 0.01, 1)], 1)
    more = found.decisions_more
    assert more
    assert not found.certain
    scaled = sums * (1 + more / sums.sum()) * 1.05
    assert answers_of([(scaled.ravel().astype(np.int64), 0.01, 1)], 1).certain


def test_too_little_is_said_to_be_too_little():
    found = answers_of([(np.full(4 * 4, 3, dtype=np.int64), 100.0, 1)], 20)
    assert (found.lift, found.interval, found.decisions_more) == (None, None, None)


def test_the_mode_changes_nothing_that_is_computed(rigs):
    live, shadow = (rigs.make_system(mode=mode).digest for mode in ("live", "shadow"))
    assert live == shadow
    assert rigs.make_system(mode="shadow").requests.shadow
    assert rigs.make_system(measurement=ANSWERS).digest != live
