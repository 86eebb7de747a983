"""Users who get new slots: when the next one begins, how many there are in a life, and what says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hushstream.engine.declare.plan import Audience
from hushstream.engine.values import ConfigurationError
from hushstream.systems.catalogue import kind_of
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    P2BConfig,
    ReleaseConfig,
    SlotConfig,
    UsersConfig,
    configuration_digest,
)
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.terms import OlderState
from hushstream.systems.p2b.edge.user_records import (
    RENEWED,
    pack_agent,
    pack_allowance,
    unpack_agent,
    unpack_allowance,
)
from hushstream.systems.p2b.guarantee.promise import life_prices, release_guarantee
from hushstream.systems.p2b.reports.planning.plan import Forecaster, assumed_spreads, plan

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
        assert any((slots[1].interaction.context == rigs.point(second)).all() for second in (200, 204))
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


@pytest.mark.parametrize("stopped", [1, 2, 30, 62, 63])
def test_a_restored_user_goes_on_as_if_nothing_had_happened(make, rigs, stopped):
    whole, agent = make(), make()
    expected = [visit(whole, rigs, second) for second in range(150)]
    found = [visit(agent, rigs, second) for second in range(stopped)]
    fields = unpack_agent(pack_agent(agent.dump()))
    agent = EdgeAgent.load(agent.terms, agent.key, fields)
    found += [visit(agent, rigs, second) for second in range(stopped, 150)]
    assert [one and one.content for one in found] == [one and one.content for one in expected]
    assert agent.dump() == whole.dump()


def test_a_copy_from_before_a_renewal_is_older(make, rigs):
    agent = make()
    due_at(agent, rigs, range(2))
    older = {**agent.dump(), "renews_ms": 0}
    with pytest.raises(OlderState):
        EdgeAgent.load(agent.terms, agent.key, older, agent.allowance())


def test_users_without_renewal_are_packed_as_they_were(make, rigs):
    agent = make(renew_every_seconds=None)
    visit(agent, rigs, 0)
    assert pack_agent(agent.dump())[:1] != RENEWED
    assert pack_allowance(agent.allowance())[:1] != RENEWED
    assert pack_agent(make().dump())[:1] != RENEWED


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
    facts = {fact.name: fact for fact in kind_of("p2b").facts(config(), None)}
    text = facts["renew_every_seconds"].text
    for slots in (1, 4):
        assert str(life_prices(config(), slots).which) in text
    assert "at most 4 in their life" in text
    assert "renew_every_seconds" not in {fact.name for fact in kind_of("p2b").facts(config(None), None)}


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
