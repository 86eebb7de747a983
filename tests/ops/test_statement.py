"""The statement for a data-protection officer says what the code promises, and never more."""

from __future__ import annotations

import json

import pytest

from hushstream.ops.statement import NOT_STATED, OperatorFacts, statement_of
from hushstream.privacy.amounts import delta_text, epsilon_text
from hushstream.privacy.guarantee import OPEN_IN
from hushstream.replay.report.statement import statement_page
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import TOPICS, Zone, topics_of
from hushstream.systems.colin.configuration import CollaborativeConfig, ContinualConfig, FeatureConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.p2b.lift import lift_guarantee


def collaborative(**release):
    graph = SocialGraph.of_edges([("ann", "bob", 1.0), ("bob", "cat", 1.0)])
    config = CollaborativeConfig("clubs", 5, FeatureConfig(4), release=ContinualConfig(**release))
    return CollaborativeSystem.of(config, graph)


SYSTEMS = {
    "hosted": lambda rigs: rigs.make_system(),
    "edge": lambda rigs: rigs.make_system(kind="edge"),
    "counter over windows": lambda rigs: rigs.make_system(release={"sums": "counter"}),
    "lift": lambda rigs: rigs.make_system(lift={"holdout": 0.1, "epsilon": 3.0}),
    "paper": lambda rigs: rigs.make_system(release={"mode": "paper", "sampling": 0.5}),
    "trusted counter": lambda _: collaborative(),
    "gaussian": lambda _: collaborative(noise="gaussian"),
    "local": lambda _: collaborative(trust="edge"),
    "noisy rewards": lambda _: collaborative(trust="edge", mechanism="noisy-reward"),
}


@pytest.fixture(params=SYSTEMS)
def system(request, rigs):
    return SYSTEMS[request.param](rigs)


def facts_of(statement):
    return {name: text for section in statement.sections for name, text in section.facts}


def test_its_figures_are_those_of_the_guarantee(system):
    promise, facts = system.guarantee(), facts_of(statement_of(system))
    assert facts["epsilon for one unit"] == epsilon_text(promise.epsilon_micro)
    assert facts["delta for one unit"] == delta_text(promise.delta_units)
    assert facts["epsilon and delta over a life"] == f"{promise.lifetime.cost}, for {promise.units_in_life}"
    assert facts["mechanism"] == promise.mechanism
    for fact in (*promise.not_protected, *promise.conditions):
        assert fact in facts.values()


def test_the_lift_is_stated_with_what_it_costs_and_what_both_cost_together(rigs):
    system = SYSTEMS["lift"](rigs)
    lift = lift_guarantee(system.config.lift, 1)
    both = system.guarantee().lifetime.cost + lift.lifetime.cost
    statement = statement_of(system)
    sections = {section.title: dict(section.facts) for section in statement.sections}
    own, parameters = sections["The lift over a hold-out, beside it"], sections["Parameters and unit of privacy"]
    assert (own["epsilon of the lift"], own["mechanism of the lift"]) == ("3", lift.mechanism)
    assert set(lift.not_protected + lift.conditions) <= set(own.values())
    assert parameters["the lift, beside it"] == f"{lift.cost}, for {lift.unit}"
    assert parameters["together, over the life of one person"] == str(both)
    assert both.epsilon_micro == 4_000_000
    registry = statement.registry
    assert registry["epsilon"] == "1 for one unit of the releases; 3 for the lift"
    assert registry["lifetime"] == f"{both}, with the lift"
    for name, text in (("mechanisms", lift.mechanism), ("privacy unit", lift.unit), ("budget", str(lift.cost))):
        assert text in registry[name]
    assert statement.guarantee["together"]["epsilon"] == 4.0


def test_without_a_lift_nothing_is_said_of_one(rigs):
    for name in ("hosted", "trusted counter"):
        statement = statement_of(SYSTEMS[name](rigs))
        assert not [section for section in statement.sections if "lift" in section.title]
        assert statement.registry["epsilon"] == "1"
        assert statement.guarantee["lift"] is None


@pytest.mark.parametrize("name", ["trusted counter", "gaussian", "local", "noisy rewards"])
def test_a_collaborative_operator_is_said_to_see_rewards_before_any_noise(rigs, name):
    system = SYSTEMS[name](rigs)
    assert OPEN_IN["hosted"] in system.guarantee().not_protected
    statement = statement_of(system)
    facts = facts_of(statement)
    for said in (facts["model of trust"], statement.registry["model of differential privacy"]):
        assert said.startswith("central")
        assert "hosted: the operator's learner workers" in said
        assert "see rewards in clear; everybody after them sees noised" in said
        assert ("the trusted counter" in said) is (system.config.release.trust == "server")
    assert ("learner workers" in facts["adds the noise"]) is (system.config.release.trust == "edge")
    assert "where the reward arises" not in system.guarantee().mechanism


def test_a_life_that_promises_nothing_is_said_in_words():
    statement = statement_of(collaborative(epsilon=2.0, horizon=10_000, rewards_per_user=1000))
    said = "for one person as a whole nothing is promised; only single rewards are protected"
    assert facts_of(statement)["what that means"] == said
    assert statement.registry["lifetime"] == f"epsilon 2000, delta 1; {said}"
    page = statement_page(statement)
    assert page.index(f"F{said[1:]}.") < page.index("Who, and what for")
    assert statement.as_json()["warning"] == said
    fine = statement_of(collaborative(rewards_per_user=20))
    assert fine.as_json()["warning"] is None
    assert "what that means" not in facts_of(fine)
    assert 'class="mark"' not in statement_page(fine)


def test_every_topic_has_its_retention_and_every_private_one_its_readers(system):
    facts = facts_of(statement_of(system))
    sections = {section.title: dict(section.facts) for section in statement_of(system).sections}
    for name in topics_of(system.name, system.roles, system.config.public_dataset, system.holdout):
        spec = TOPICS[name]
        assert f"topic {name}" in sections["Retention and erasure"]
        if spec.zone in (Zone.EDGE, Zone.SHUFFLER, Zone.COUNTER):
            readable = sections["Who can read raw data"][f"topic {name}"]
            assert all(str(reader) in readable for reader in spec.readers)
        elif spec.zone is Zone.PUBLISHED:
            assert name in facts["published topics"]


def test_what_an_erasure_leaves_is_said_of_the_system_at_hand(system):
    erasure = facts_of(statement_of(system))["erasure of a user"]
    assert ("no release names him again" in erasure) is (system.name == "colin")
    assert ("under a keyed hash" in erasure) is (system.name == "p2b")


def test_it_never_calls_data_anonymous(system):
    statement = statement_of(system, OperatorFacts(operator="Shop Ltd"))
    for text in (json.dumps(statement.as_json()), statement_page(statement)):
        assert "anonym" not in text.lower()


def test_a_weaker_release_than_claimed_stands_marked_before_everything_else(rigs):
    system = SYSTEMS["paper"](rigs)
    statement = statement_of(system)
    assert statement.marks == ("NOT PRIVATE AS STATED",)
    page = statement_page(statement)
    assert page.index("NOT PRIVATE AS STATED") < page.index("Parameters and unit of privacy")


def test_the_page_holds_every_fact_and_takes_none_as_markup(system):
    statement = statement_of(system, OperatorFacts(operator="<b>Shop</b>", purpose="to recommend"))
    page = statement_page(statement)
    assert "&lt;b&gt;Shop&lt;/b&gt;" in page
    assert "<b>Shop" not in page
    assert page.count("<dt>") == sum(len(s.facts) for s in statement.sections) + len(statement.registry)


def test_what_the_operator_did_not_say_is_said_to_be_missing(system):
    registry = statement_of(system).registry
    assert registry["data curator"] == registry["justification"] == NOT_STATED


def test_the_flavour_is_pure_only_where_all_of_delta_is_residue():
    assert statement_of(collaborative()).registry["flavour"].startswith("pure")
    assert statement_of(collaborative(noise="gaussian")).registry["flavour"] == "(epsilon, delta)"


@pytest.mark.parametrize(
    ("values", "message"),
    [({"owner": "x"}, "got 'owner'"), ({"operator": 3}, "expected text for operator"), ({"purpose": " "}, "purpose")],
)
def test_unknown_or_empty_facts_are_refused(values, message):
    with pytest.raises(HushstreamError, match=message):
        OperatorFacts.of(values)
