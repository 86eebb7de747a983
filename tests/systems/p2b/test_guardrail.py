"""The guardrail of a measurement: which harm counts and when, what leaves and what it costs, and what is told of it."""

import re

import numpy as np
import pytest
from tests.systems.p2b.test_lift import BASELINE, HALVES, MOST, USERS, begun, group, read

from hushstream.counting import BadState, Neighbours
from hushstream.engine.declare.plan import Audience
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import ConfigurationError
from hushstream.feedback.join import JOIN_OUTCOMES, JoinOutcome
from hushstream.privacy.amounts import epsilon_micro
from hushstream.schemas import codec
from hushstream.schemas.rows import Reason
from hushstream.systems.p2b.lift import (
    SUMS,
    Group,
    guardrail_tree,
    lift_guarantee,
    lift_of,
    lift_tree,
    lift_user,
    required_lift,
    smallest_effect,
)
from hushstream.systems.p2b.machines.guardrail import Guardrail
from hushstream.systems.p2b.plan import plan
from hushstream.systems.p2b.reports import LiftReport
from hushstream.systems.p2b.system import LEARNER

WAIT = 20.0
MEASURED = {**HALVES, "guardrail": "complained", "guardrail_share": 0.3, "guardrail_wait_seconds": WAIT}
LEVELS = 4


@pytest.fixture
def rig(rigs):
    return begun(rigs, MEASURED, release={"window_slots": 4, "levels": LEVELS})


def harm(rig, event, value, user):
    rig._feedback("harm", event, 0, value, user)


def visit(rigs, rig, event, user, reward=1.0, shown=None):
    """One decision, and its reward; ``shown`` is the arm on screen if it is another one than the decided."""
    arm = rig.decide(event, user, rigs.point(0), baseline=BASELINE)
    if shown is not None:
        rig.shown(event, (arm + shown) % 4, user)
    rig.reward(event, arm, reward, user)
    rig.fold()


def at(rigs, rig, seconds):
    """Let log time go on; the decision that moves it asks for no arm, so it counts in no group."""
    rig.wait(seconds)
    rig.decide(f"later at {rig.now_ms}", "tick", rigs.point(0))


def noise(rig):
    """The noise of the first release."""
    address = rig.system.lift_address(rig.machine.chain.genesis_nonce, 0)
    key = rig.key.derive("guardrail")
    return Guardrail(required_lift(rig.system.config), 5000, key, address).release(0)


def released(rig):
    """A first release without its noise: (groups, 2)."""
    rig.end_phase()
    (record,) = rig.fold().records("lift", "Lift")
    return (np.frombuffer(record["guardrail"], "<i8") - noise(rig).sums).reshape(-1, SUMS), record


def counted(rig, harms):
    """The sums by hand of decisions with these harms, by user: (groups, 2)."""
    sums = np.zeros((len(Group), SUMS), dtype=np.int64)
    for user, values in harms.items():
        levels = [int(value * LEVELS) for value in values]
        sums[group(rig, user)] += [sum(levels), LEVELS * len(levels) - sum(levels)]
    return sums


def test_harm_is_counted_by_group_of_the_decisions_of_which_rewards_count(rigs, rig):
    for number in range(MOST + 2):
        for place, user in enumerate(USERS):
            visit(rigs, rig, f"{user}:{number}", user, reward=(place % 3) / 2)
            harm(rig, f"{user}:{number}", (place % 5) / 4, user)
    rig.fold()
    at(rigs, rig, WAIT + 1)
    found, record = released(rig)
    by_hand = counted(rig, {user: [(place % 5) / 4] * MOST for place, user in enumerate(USERS)})
    assert by_hand.all(), "each group has harm, and is without it"
    assert found.tolist() == by_hand.tolist()
    assert record["guardrail_variance"] == noise(rig).variance
    assert found.sum() == LEVELS * MOST * len(USERS)


def test_the_first_harm_that_comes_within_the_wait_counts_also_before_the_reward(rigs, rig):
    user = USERS[0]
    arms = {name: rig.decide(name, user, rigs.point(0), baseline=BASELINE) for name in ("early", "twice", "last")}
    harm(rig, "early", 1.0, user)
    for name, arm in arms.items():
        rig.reward(name, arm, 0.0, user)
    harm(rig, "twice", 0.25, user)
    harm(rig, "twice", 1.0, user)
    harm(rig, "of nobody", 1.0, user)
    harm(rig, "last", 1.0, USERS[1])
    rig.fold()
    rig.wait(WAIT + 0.001)
    harm(rig, "last", 1.0, user)
    at(rigs, rig, 1)
    assert released(rig)[0].tolist() == counted(rig, {user: [1.0, 0.25, 0.0]}).tolist()
    told = {JoinOutcome.HARM: 2, JoinOutcome.REPEATED_FEEDBACK: 1, JoinOutcome.HARM_NOT_COUNTED: 3}
    assert {name: rig.seen.counts[name] for name in told} == told


def test_a_decision_counts_when_the_wait_for_harm_is_over_harmed_or_not(rigs, rig):
    """One that counted with its harm at once would make the rate before the wait is over 1 and not a half."""
    for number, user in enumerate(USERS[:2]):
        visit(rigs, rig, f"e{number}", user)
    harm(rig, "e0", 1.0, USERS[0])
    at(rigs, rig, WAIT - 1)
    early, record = released(rig)
    assert not early.any()
    assert np.frombuffer(record["sums"], "<i8").size == SUMS * len(Group)
    at(rigs, rig, 2)
    rig.end_phase()
    rig.fold()
    exact = rig.machine.guardrail._counter.exact.reshape(-1, SUMS)
    assert exact.tolist() == counted(rig, {USERS[0]: [1.0], USERS[1]: [0.0]}).tolist()


def test_what_was_not_shown_as_decided_counts_neither_with_harm_nor_without(rigs, rig):
    visit(rigs, rig, "other", USERS[0], shown=1)
    rig.decide("unseen", USERS[0], rigs.point(0), baseline=BASELINE)
    for name in ("other", "unseen"):
        harm(rig, name, 1.0, USERS[0])
    at(rigs, rig, WAIT + 1)
    assert not rig.machine.guardrail._held
    assert not released(rig)[0].any()


@pytest.mark.parametrize("through_a_snapshot", [False, True])
def test_what_waits_of_a_user_who_is_forgotten_is_never_counted(rigs, rig, through_a_snapshot):
    for user in USERS[:3]:
        visit(rigs, rig, f"{user}:0", user)
        harm(rig, f"{user}:0", 1.0, user)
    rig.fold()
    if through_a_snapshot:
        state = rig.machine.snapshot()
        rig.machine = rigs.LearnerMachine(rig.system, 0, rig.key)
        rig.machine.start(rig.genesis)
        rig.machine.restore(state)
    rig.put("contexts", codec.encode("Forget", {"user": USERS[0], "config_digest": rig.system.digest}))
    at(rigs, rig, WAIT + 1)
    assert released(rig)[0].tolist() == counted(rig, {user: [1.0] for user in USERS[1:3]}).tolist()


def test_one_user_moves_each_counter_by_the_sensitivity_and_no_more(rigs, rig):
    """However many decisions, and whatever came of them."""
    counted_lift = required_lift(rig.system.config)
    for number in range(3 * MOST):
        visit(rigs, rig, f"e{number}", USERS[0])
        harm(rig, f"e{number}", (0.0, 0.3, 1.0)[number % 3], USERS[0])
    at(rigs, rig, WAIT + 1)
    tree = guardrail_tree(*counted_lift)
    assert np.abs(released(rig)[0]).sum() == LEVELS * MOST == tree.sensitivity


def test_both_counters_together_cost_the_measurements_epsilon_which_they_share_as_stated(rigs, rig):
    counted_lift, whole = required_lift(rig.system.config), epsilon_micro(MEASURED["epsilon"])
    promise, alone = lift_guarantee(*counted_lift), lift_guarantee(*required_lift(begun(rigs).system.config))
    trees = [plan(*counted_lift) for plan in (lift_tree, guardrail_tree)]
    assert [epsilon_micro(tree.budget.epsilon) for tree in trees] == [14_000_000, 6_000_000]
    assert promise.epsilon_micro == alone.epsilon_micro == whole
    assert promise.cost == promise.lifetime.cost == trees_cost(trees, "cost")
    assert promise.replace_one == promise.lifetime.exchange == trees_cost(trees, "replace_one")
    assert promise.mechanism.count("negative-digit") == 2
    for phase in range(2):
        rig.end_phase(phase)
    rig.fold()
    debits = [entry["debit"]["epsilon_micro"] for entry in rig.seen.records("ledger-edge", "LedgerEntry")]
    assert debits == [whole, 0], "one charge pays for all releases of both"
    assert {record["epsilon_micro"] for record in rig.seen.records("lift", "Lift")} == {whole}


def trees_cost(trees, price):
    """The sum of what the counters alone guarantee, each of whose leaves may all be one user's."""
    pair = Neighbours(leaves=MOST)
    one, other = (getattr(tree.guarantee(pair), price) for tree in trees)
    return one + other


def test_a_new_epoch_of_noise_draws_and_charges_both_counters_again(rigs):
    budget = BudgetConfig(epsilon=200.0, delta=1e-6, lift=0.5)
    rig = begun(rigs, MEASURED, release={"window_slots": 4, "levels": LEVELS}, budget=budget)
    visit(rigs, rig, "e", USERS[0])
    harm(rig, "e", 1.0, USERS[0])
    at(rigs, rig, WAIT + 1)
    exact, _ = released(rig)
    assert rig.machine.request_epoch(bytes(16))
    rig.end_phase()
    (record,) = rig.fold().records("lift", "Lift")
    epoch = rig.machine.releases.epoch
    address = rig.system.lift_address(epoch.nonce(rig.machine.chain.genesis_nonce), 0, epoch.number)
    twin = Guardrail(required_lift(rig.system.config), 5000, rig.key.derive("guardrail"), address).release(0)
    assert (np.frombuffer(record["guardrail"], "<i8") - twin.sums).reshape(-1, SUMS).tolist() == exact.tolist()
    assert (twin.sums != noise(rig).sums).any()
    debits = [entry["debit"]["epsilon_micro"] for entry in rig.seen.records("ledger-edge", "LedgerEntry")]
    assert debits == [epsilon_micro(MEASURED["epsilon"])] * 2


def test_the_two_counters_never_share_noise(rigs):
    """At equal shares they are alike but for their keys; the difference of equal noise would be exact."""
    rig = begun(rigs, {**MEASURED, "epsilon": 0.02, "guardrail_share": 0.5})
    counted_lift = required_lift(rig.system.config)
    assert lift_tree(*counted_lift) == guardrail_tree(*counted_lift)
    _, record = released(rig)
    # Six draws of scale above 500: one is equal to another with a chance below 1e-3.
    assert (np.frombuffer(record["sums"], "<i8") != np.frombuffer(record["guardrail"], "<i8")).all()


def test_harm_moves_nothing_but_the_guardrails_counts(rigs):
    """No model, no slot, no answer, no other count; and no gauge, before a release and after it."""

    def played(*harms):
        rig = begun(rigs, MEASURED, release={"window_slots": 4, "levels": LEVELS}, slot={"after_interactions": 2})
        for number in range(4):
            for user in USERS[:6]:
                visit(rigs, rig, f"{user}:{number}", user, number % 2)
                for value in harms:
                    harm(rig, f"{user}:{number}", value, user)
        rig.fold()
        at(rigs, rig, WAIT + 1)
        rig.end_phase()
        rig.fold()
        return rig

    without, with_harm = played(), played(1.0)
    assert [(one.topic, one.value) for one in without.seen.outputs if one.topic != "lift"] == [
        (one.topic, one.value) for one in with_harm.seen.outputs if one.topic != "lift"
    ]
    assert without.seen.answers == with_harm.seen.answers
    records = [rig.seen.records("lift", "Lift") for rig in (without, with_harm)]
    for one, other in zip(*records, strict=True):
        assert {name for name in one if one[name] != other[name]} <= {"guardrail"}
    assert records[0][-1]["guardrail"] != records[1][-1]["guardrail"]
    gauges = [
        [LEARNER.figures(rig.system, out.topic, out.value) for out in rig.seen.outputs if out.topic == "lift"]
        for rig in (without, with_harm)
    ]
    assert gauges[0] == gauges[1]
    assert gauges[0][0]
    assert all(JOIN_OUTCOMES[str(one)] == "zone-private" for one in (JoinOutcome.HARM, JoinOutcome.HARM_NOT_COUNTED))


def test_what_waits_is_the_same_after_a_restart_and_a_damaged_note_is_refused(rigs, rig):
    counted_lift, address = required_lift(rig.system.config), rig.system.lift_address(bytes(32), 0)
    counter, twin = (Guardrail(counted_lift, 20_000, rig.key, address) for _ in range(2))
    for number in range(9):
        user = lift_user(rig.machine.terms.user_key(f"user-{number % 4}"))
        counter.hold(user, f"e\u00e9{number}", number)
        if number % 3:
            counter.shown(user, f"e\u00e9{number}", number % 3)
        counter.told(user, f"e\u00e9{number}", number / 8, 100)
    counter.release(20_004)
    twin.load(counter.dump())
    assert (twin.dump(), twin._held) == (counter.dump(), counter._held)
    assert twin.release(30_000).sums.tolist() == counter.release(30_000).sums.tolist()
    for state in (b"", counter.dump()[:40], bytes(7)):
        with pytest.raises(BadState):
            twin.load(state)


def test_its_name_is_part_of_the_configuration(rigs):
    digests = [rigs.make_system(measurement={**MEASURED, "guardrail": harm}).digest for harm in ("a", "b", None)]
    assert len(set(digests)) == 3


def test_where_no_harm_is_measured_one_is_refused(rigs):
    rig = begun(rigs)
    visit(rigs, rig, "e", USERS[0])
    harm(rig, "e", 1.0, USERS[0])
    assert rig.fold().reasons == [Reason.UNKNOWN_KIND]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"of": "answers", "baseline": 0.0, "own": 0.0}, "measurement.guardrail: expected none without groups"),
        ({"baseline": 0.0, "own": 0.0}, "measurement.guardrail: expected none without groups"),
        ({"guardrail": "two words"}, "measurement.guardrail: expected a name of 1 to 40"),
        ({"guardrail_share": 1.0}, "measurement.guardrail_share: expected a share between 0 and 1"),
        ({"guardrail_share": 1e-9}, "measurement.guardrail_share: expected"),
        ({"guardrail_wait_seconds": 4.0}, r"at least the reward's wait \(feedback.attribution_window_seconds: 5\)"),
    ],
)
def test_a_guardrail_that_cannot_be_is_refused_by_name(rigs, changes, said):
    with pytest.raises(ConfigurationError, match=said):
        rigs.make_system(measurement={**MEASURED, **changes})


# What is told of it.


def test_it_is_told_beside_the_lift_with_an_interval_of_its_own(rigs, rig):
    for number in range(MOST):
        for user in USERS:
            visit(rigs, rig, f"{user}:{number}", user)
            harm(rig, f"{user}:{number}", 1.0 if group(rig, user) is Group.MODEL else 0.0, user)
    rig.fold()
    at(rigs, rig, WAIT + 1)
    _, record = released(rig)
    report = read(rig.system, rig)
    found = lift_of([(np.frombuffer(record["guardrail"], "<i8"), record["guardrail_variance"], LEVELS)], MOST)
    assert report.harms == found
    compared = report.comparisons()
    assert [one.harm for one in compared] == ["", "", "complained", "complained"]
    assert compared[2].over == compared[0].over
    over = found.over(Group.BASELINE)
    assert compared[2].difference == over.difference
    assert compared[2].interval == (over.difference - over.ci95, over.difference + over.ci95)
    told = report.as_json()["guardrail"]
    assert told["harm"] == "complained"
    assert told["groups"]["model"]["rate"] == found.rates[Group.MODEL].rate
    text = report.as_text()
    assert text.index("The guardrail, complained: harm instead of reward") > text.index("The shared private model over")


def test_without_one_nothing_is_told_of_it(rigs, rig):
    other = begun(rigs)
    other.end_phase()
    other.fold()
    report = read(other.system, other)
    assert isinstance(report, LiftReport)
    assert (report.harms, report.as_json()["guardrail"]) == (None, None)
    assert "guardrail" not in report.as_text()


def test_the_plan_says_what_it_can_tell(rigs):
    measured = {"own": 0.2, "guardrail": "returned"}
    config = rigs.make_system(measurement=measured, expected_slots=50_000).config
    notes = plan(config, Audience(50_000, 100)).notes
    counted = int(re.search(r"counts ([\d,]+) of these users", notes[0])[1].replace(",", ""))
    smallest = smallest_effect(config, Group.OWN, counted, 0.01, guardrail_tree)
    assert f"of its guardrail, returned, it shows a difference of {smallest:.2g} or more (rate 1%)" in notes
    assert smallest > smallest_effect(config, Group.OWN, counted, 0.01)
