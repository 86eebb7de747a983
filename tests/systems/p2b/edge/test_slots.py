"""When a slot comes, how large it is and where it goes is public; what it holds is as likely as is stated."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.plan import Audience
from hushstream.engine.values import ConfigurationError
from hushstream.schemas import codec
from hushstream.systems.catalogue import kind_of
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    P2BConfig,
    ReleaseConfig,
    SlotConfig,
    UsersConfig,
    configuration_digest,
)
from hushstream.systems.p2b.edge.agent import Candidates, EdgeAgent, OlderState, click_chance
from hushstream.systems.p2b.edge.users import (
    pack_allowance,
    unpack_allowance,
)
from hushstream.systems.p2b.guarantee import life_prices, release_guarantee
from hushstream.systems.p2b.plan import Forecaster, assumed_spreads, plan
from hushstream.systems.p2b.slots import ContributionError, Report, pack

USERS = [f"user-{number}" for number in range(24)]


def play(rigs, rewards, contexts, system=None, order=USERS):
    """Three rounds of every user, then enough log time for all slots to settle."""
    rig = rigs.LearnerRig(rigs.make_system() if system is None else system)
    for round_index in range(3):
        for user in order:
            number = int(user.split("-")[1])
            event_id = f"{user}:{round_index}"
            arm = rig.decide(event_id, user, rigs.point(contexts(number, round_index)))
            reward = rewards(number, round_index)
            if reward is not None:
                rig.reward(event_id, arm, reward, user)
            rig.wait(0.1)
    rig.wait(20)
    rig.context("last", user="nobody")
    rig.fold()
    return rig


def observed(rig):
    """All that an observer of the reports topic sees: which step, partition, size, and everything but the content."""
    return [
        (step, output.partition, output.key, len(output.value), output.value[:-32])
        for step, found in enumerate(rig.seen.steps)
        for output in found.releases
        if output.topic == "reports"
    ]


def test_content_moves_no_slot_in_time_place_size_or_number(rigs):
    system = rigs.make_system(partitions={"shuffler": 3})
    generator = np.random.default_rng(5)
    reference = None
    contents = set()
    for _ in range(4):
        table = generator.random((len(USERS), 3))
        codes = generator.integers(0, 4, (len(USERS), 3))
        rewards = [lambda n, r, t=table: float(t[n, r] > 0.5), lambda n, r: None][_ % 2]
        rig = play(rigs, rewards, lambda n, r, c=codes: int(c[n, r]), system)
        assert len(rig.seen.slots) == len(USERS)
        contents.add(tuple(slot.content for slot in rig.seen.slots))
        if reference is None:
            reference = observed(rig)
        assert observed(rig) == reference
    assert len(contents) >= 3


def test_what_was_rewarded_decides_of_no_slot_when_it_leaves(rigs):
    """An event that is asked for again is the same one, rewarded or not, also where the partition has forgotten it."""
    system = rigs.make_system(
        feedback={"remembered_events": 1, "attribution_window_seconds": 5.0},
        slot={"after_interactions": 3, "settle_seconds": 1.0},
        users={"contexts_per_period": 3},
    )
    seen = []
    for rewarded in (False, True):
        rig = rigs.LearnerRig(system)
        arm = rig.decide("e", "ann")
        if rewarded:
            rig.reward("e", arm, 1.0, "ann")
        for event, seconds in [("x", 1), ("e", 3), ("f", 9), ("y", 0), ("e", 9)]:
            rig.decide(event, "bob" if event in "xy" else "ann")
            rig.wait(seconds)
        rig.context("last", "bob")
        rig.fold()
        asked = [(answer.event_id, answer.policy) for answer in rig.seen.answers]
        seen.append((observed(rig), asked, rig.machine.agents.get("ann").allowance()))
        assert len(rig.seen.slots) == 1
    assert seen[0] == seen[1]


def test_a_slot_holds_one_of_the_users_own_resolved_interactions(rigs):
    rig = play(rigs, lambda n, r: float(r == 1), lambda n, r: r)
    assert all(isinstance(report, Report) for report in rig.seen.reports)
    arms, codes = rig.seen.arms, rig.system.encoder.encode(np.stack([*map(rigs.point, range(3))])).tolist()
    possible = {
        rig.machine.terms.user_key(user).digest("report-id", bytes(8)): {
            Report(codes[r], arms[f"{user}:{r}"], int(r == 1)) for r in range(3)
        }
        for user in USERS
    }
    for slot, report in zip(rig.seen.slots, rig.seen.reports, strict=True):
        assert report in possible[slot.report_id]
    rounds = {report.code for report in rig.seen.reports}
    assert len(rounds) == 3, "the coin never chose one of the three rounds"


def test_an_unresolved_interaction_gives_null_of_the_same_size(rigs):
    rig = play(rigs, lambda n, r: None, lambda n, r: r)
    assert [slot.content for slot in rig.seen.slots] == [pack(None)] * len(USERS)
    sizes = {len(output.value) for output in rig.seen.releases("reports")}
    resolved = play(rigs, lambda n, r: 1.0, lambda n, r: r)
    assert sizes == {len(output.value) for output in resolved.seen.releases("reports")}
    assert len(sizes) == 1


@pytest.mark.parametrize("lifetime", [1, 2])
def test_a_user_owes_exactly_their_lifetimes_slots(rigs, lifetime):
    rig = rigs.LearnerRig(rigs.make_system(slot={"lifetime_slots": lifetime}))
    rig.interact("ann", 13)
    rig.end_phase(0)
    rig.fold()
    rig.end_phase(0)
    rig.fold()
    assert len({slot.report_id for slot in rig.seen.slots}) == len(rig.seen.slots) == lifetime


def test_repeated_and_refused_contexts_bring_no_slot_nearer(rigs):
    rig = rigs.LearnerRig()
    for _ in range(5):
        rig.context("e1")
    rig.context("bad", x=[0.5, 0, 0, 0])
    rig.context("e2")
    rig.end_phase(0)
    assert not rig.fold().slots
    rig.context("e3")
    rig.end_phase(1)
    assert len(rig.fold().slots) == 1


def test_slots_of_one_span_leave_together_once_the_last_of_them_has_settled(rigs):
    rig = rigs.LearnerRig()
    rig.interact("ann", 3)
    rig.wait(9.9)
    rig.interact("bob", 3)
    rig.wait(0.1)
    rig.interact("cyd", 3)
    rig.wait(9.999)
    rig.decide("e1", user="dan")
    assert not rig.seen.slots
    rig.wait(0.001)
    rig.decide("e2", user="dan")
    assert len(rig.seen.slots) == 2, "ann's and bob's, who fell due in the same ten seconds"
    rig.wait(10)
    rig.decide("e3", user="dan")
    assert len(rig.seen.slots) == 3


def test_a_reward_that_comes_while_the_slot_settles_is_reported(rigs):
    rig = rigs.LearnerRig(rigs.make_system(feedback={"attribution_window_seconds": 60.0}))
    arms = [rig.decide(f"e{number}", x=rigs.point(number)) for number in range(3)]
    for number, arm in enumerate(arms):
        rig.reward(f"e{number}", arm, 1.0)
    rig.wait(20)
    rig.context("f", user="bob")
    (report,) = rig.fold().reports
    assert report is not None
    assert report.level == 1


def test_an_arm_shown_in_place_of_another_is_the_one_reported(rigs):
    rig = rigs.LearnerRig(rigs.make_system(slot={"after_interactions": 1}))
    other = (rig.decide("e1") + 1) % rigs.ARMS
    rig.shown("e1", other)
    rig.reward("e1", other, 1.0)
    rig.end_phase()
    (report,) = rig.fold().reports
    assert report == Report(int(rig.system.encoder.encode(rigs.point(0)[None])[0]), other, 1)


def test_the_order_of_slots_in_a_batch_tells_nothing_of_who_came_first(rigs):
    sent = []
    for order in (USERS, USERS[::-1]):
        rig = play(rigs, lambda n, r: 1.0, lambda n, r: r, order=order)
        sent.append([slot.report_id for slot in rig.seen.slots])
    assert sorted(sent[0]) == sorted(sent[1])
    sent = []
    for order in (USERS, USERS[::-1]):
        rig = rigs.LearnerRig()
        for user in order:
            rig.interact(user, 3)
        rig.end_phase()
        sent.append([slot.report_id for slot in rig.fold().slots])
    assert sent[0] == sent[1] == sorted(sent[0])


def test_slots_go_to_every_shuffler_partition_by_their_opaque_id(rigs):
    rig = play(rigs, lambda n, r: 1.0, lambda n, r: r, rigs.make_system(partitions={"shuffler": 3}))
    assert {slot.partition for slot in rig.seen.slots} == {0, 1, 2}
    for slot in rig.seen.slots:
        assert slot.partition == int.from_bytes(slot.report_id[:8], "little") % 3
    assert {output.key for output in rig.seen.releases("reports")} == {None}


def test_a_phase_end_goes_behind_the_slots_to_every_shuffler(rigs):
    rig = rigs.LearnerRig(rigs.make_system(partitions={"shuffler": 3}), partition=0)
    for user in USERS[:6]:
        rig.interact(user, 3)
    rig.end_phase(4)
    outputs = rig.fold().releases("reports")
    kinds = [codec.decode(output.value)[0] for output in outputs]
    assert kinds == ["SlotReport"] * 6 + ["Seal"] * 3
    assert sorted(output.partition for output in outputs[6:]) == [0, 1, 2]
    phase_ends = [codec.decode(output.value)[1] for output in outputs[6:]]
    assert {(end["phase"], end["origin"], end["config_digest"]) for end in phase_ends} == {(4, 0, rig.system.digest)}


def test_a_slot_sent_at_a_late_phase_end_names_the_period_of_the_phase_end(rigs):
    rig = rigs.LearnerRig()
    rig.interact("ann", 3)
    rig.wait(3 * 86_400)
    rig.end_phase()
    (slot,) = rig.fold().slots
    assert slot.period == rig.now_ms // 86_400_000


def test_nothing_of_the_edge_is_named_outside_it(rigs):
    users = [f"canary-user-{number}" for number in range(6)]
    rig = rigs.LearnerRig()
    for user in users:
        rig.interact(user, 3)
    rig.end_phase()
    rig.fold()
    outside = [output for output in rig.seen.outputs if output.topic != "dead-letters-edge"]
    assert len(outside) == 7
    assert not any(b"canary" in output.value for output in outside)
    assert not any(output.key for output in outside)


def test_interactions_in_clear_leave_no_learner_not_even_in_a_replay_of_public_data(rigs):
    rig = rigs.LearnerRig(rigs.make_system(public_dataset=True))
    rig.interact("ann", 3)
    rig.end_phase()
    seen = rig.fold()
    assert len(seen.slots) == 1
    assert {output.topic for output in rig.seen.outputs} == {"reports"}


WORD = 1 << 64


def _exact(clicks: list[bool], chance: float | None) -> Counter[int | None]:
    """The probability of each interaction, over coins of 1/12 each and slot coins of 1/10 each."""
    coins, slots = [WORD * (2 * i + 1) // 24 for i in range(12)], [WORD * (2 * i + 1) // 20 for i in range(10)]
    found: Counter[int | None] = Counter()
    for words in product(coins, repeat=len(clicks)):
        kept: Candidates[int] = Candidates()
        for number, (clicked, word) in enumerate(zip(clicks, words, strict=True)):
            kept = kept.observe(number, clicked, chance, word)
        for slot in slots:
            found[kept.chosen(chance, slot)] += 1
    whole = sum(found.values())
    return Counter({key: Fraction(count, whole) for key, count in found.items()})


def test_the_first_click_has_probability_h_and_unclicked_ones_share_the_rest():
    found = _exact([False, True, False, True], 0.8)
    assert found == {1: Fraction(8, 10), 0: Fraction(1, 10), 2: Fraction(1, 10)}


def test_without_h_every_interaction_is_as_likely():
    assert _exact([True, False, True], None) == {0: Fraction(1, 3), 1: Fraction(1, 3), 2: Fraction(1, 3)}


def test_where_one_kind_is_absent_the_other_stands_in():
    assert _exact([False, False], 0.5) == {0: Fraction(1, 2), 1: Fraction(1, 2)}
    assert _exact([True, True], 0.5) == {0: Fraction(1)}


def test_a_user_without_settled_interactions_sends_null():
    assert Candidates().chosen(0.8, 0) is None
    assert Candidates().chosen(None, WORD - 1) is None


@pytest.mark.parametrize(
    ("rate", "chance"), [(0.0, 0.8), (0.1, 0.8), (0.11, 0.5), (0.3, 0.5), (0.31, None), (1.0, None)]
)
def test_h_follows_from_the_declared_click_rate(rate, chance):
    assert click_chance(rate) == chance


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(ContributionError):
        click_chance(rate)


EVERY_MS = 60_000
SLOTS = {"lifetime_slots": 3, "renew_every_seconds": EVERY_MS / 1000, "after_interactions": 2}


@pytest.fixture
def make(rigs):
    def agent(**slot: object) -> EdgeAgent:
        system = rigs.make_system(slot={**SLOTS, **slot})
        return EdgeAgent(system.edge_terms(), rigs.seeded_key(1, "edge").derive("user", "ann"), "private")

    return agent


def visit(agent: EdgeAgent, rigs, second: int, take: bool = True):
    """One decision with its reward; the slot that falls due with it, if one does."""
    event = f"at-{second}"
    for waiting, decision in list(agent.open.items()):
        if decision.deadline_ms <= 1000 * second:
            agent.expire(waiting)
    choice = agent.decide(event, rigs.point(second), 1000 * second)
    agent.rewarded(event, choice.arm, 1.0)
    return agent.take_slot() if choice.slot_due and take else choice.slot_due


def due_at(agent: EdgeAgent, rigs, seconds: range) -> list[int]:
    return [second for second in seconds if visit(agent, rigs, second)]


def test_the_next_slot_begins_when_its_time_has_come(make, rigs):
    """Two decisions a slot, one a second: due at 1 s, then from 61 s on, and a minute after that."""
    assert due_at(make(), rigs, range(200)) == [1, 62, 123]


def test_a_user_who_comes_back_for_ever_sends_as_many_slots_as_a_life_has(make, rigs):
    agent = make()
    assert len(due_at(agent, rigs, range(0, 3_000, 7))) == 3
    assert (agent.due, agent.sent) == (3, 3)


def test_decisions_between_two_slots_go_into_neither(make, rigs):
    """What they did while no slot was open leaves no trace in what is sent."""
    contents = []
    for others in (range(2, 61), range(0)):
        agent = make()
        visit(agent, rigs, 0)
        visit(agent, rigs, 1)
        for second in others:
            assert not visit(agent, rigs, second)
        slots = [visit(agent, rigs, second) for second in (200, 204)]
        assert slots[0] is False
        contents.append(slots[1].report_id)
        assert any(slots[1].interaction.context == rigs.point(second).tobytes() for second in (200, 204))
    assert contents[0] == contents[1]


def test_slots_of_one_life_have_ids_of_their_own(make, rigs):
    agent = make()
    ids = {found.report_id for second in range(200) if (found := visit(agent, rigs, second))}
    assert len(ids) == 3


def test_a_user_whose_state_was_given_up_gets_no_slot_before_its_time(make, rigs):
    agent = make()
    assert due_at(agent, rigs, range(2)) == [1]
    agent.delete_state()
    left = unpack_allowance(pack_allowance(agent.allowance()))
    assert left == agent.allowance()
    again = EdgeAgent(agent.terms, agent.key, "private", left)
    assert due_at(again, rigs, range(2, 200)) == [62, 123]


def test_a_copy_from_before_a_renewal_is_older(make, rigs):
    agent = make()
    due_at(agent, rigs, range(2))
    older = {**agent.dump(), "renews_ms": 0}
    with pytest.raises(OlderState):
        EdgeAgent.load(agent.terms, agent.key, older, agent.allowance())


# What follows from the configuration.


def config(days: float | None = 90.0, slots: int = 4) -> P2BConfig:
    every = None if days is None else days * 86_400
    return P2BConfig(
        deployment="shop",
        arms=10,
        context=ContextConfig(4),
        expected_slots=20_000,
        slot=SlotConfig(lifetime_slots=slots, renew_every_seconds=every),
        release=ReleaseConfig(window_slots=1_000),
    )


def test_a_life_is_priced_with_all_its_slots_however_far_apart_they_are():
    apart, together, one = config(), config(None), config(None, 1)
    assert release_guarantee(apart).lifetime.cost == release_guarantee(together).lifetime.cost
    assert release_guarantee(apart).lifetime.cost.epsilon_micro == 4 * release_guarantee(one).cost.epsilon_micro


def test_a_renewal_is_in_the_digest():
    assert len({configuration_digest(config(days), b"") for days in (None, 30.0, 90.0)}) == 3


def test_the_guarantee_says_both_prices():
    facts = {fact.name: fact for fact in kind_of("p2b").facts(config(), Artefacts("here", {}))}
    text = facts["renew_every_seconds"].text
    for slots in (1, 4):
        assert str(life_prices(config(), slots).which) in text
    assert "at most 4 in their life" in text
    assert "renew_every_seconds" not in {
        fact.name for fact in kind_of("p2b").facts(config(None), Artefacts("here", {}))
    }


def test_a_plan_foresees_slots_when_they_fall_due():
    """A visit every three days, ten a slot: due with visit 10, and then 30 visits and nine later each."""
    audience = Audience(1_000, 120, 360)
    ahead = Forecaster(config(), audience, assumed_spreads(config()))
    assert list(ahead.due_visits()) == [10, 49, 88]
    at_once = config(None)
    assert list(Forecaster(at_once, audience, assumed_spreads(at_once)).due_visits()) == [10, 20, 30, 40]
    lives = {life.days: life for life in plan(config(), audience).lives}
    assert [lives[days].units for days in (1, 30, 365)] == [0, 1, 3]
    assert lives[365].prices == life_prices(config(), 3)


def test_a_renewal_needs_a_cap_and_time_for_what_waits():
    with pytest.raises(ConfigurationError, match=r"privacy\.units_per_person: expected at least 2, the cap of a life"):
        config(slots=1)
    with pytest.raises(ConfigurationError, match=r"privacy\.renew_every_seconds: expected at least the reward's wait"):
        replace(config(), slot=SlotConfig(lifetime_slots=2, renew_every_seconds=60.0))
    slot = SlotConfig(1, 2, renew_every_seconds=86_400.0)
    with pytest.raises(ConfigurationError, match=r"privacy\.renew_every_seconds: expected none where each event"):
        replace(config(), slot=slot, users=UsersConfig(events=True))
