"""The statement for a data-protection officer says what the code promises, and never more."""

from __future__ import annotations

import json

import pytest

from hushstream.engine.flows import readers
from hushstream.ops.statement import NOT_STATED, OperatorFacts, statement_of
from hushstream.privacy.amounts import delta_text, epsilon_text
from hushstream.privacy.guarantee import OPEN_IN
from hushstream.replay.report.statement import statement_page
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import CollaborativeConfig, ContinualConfig, FeatureConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.lift import lift_guarantee
from hushstream.systems.p2b.system import declare as declare_p2b


def collaborative(**release):
    graph = SocialGraph.of_edges([("ann", "bob", 1.0), ("bob", "cat", 1.0)])
    config = CollaborativeConfig("clubs", 5, FeatureConfig(4), release=ContinualConfig(**release))
    return declare_colin(CollaborativeSystem.of(config, graph))


def shuffled(rigs, **changes):
    return declare_p2b(rigs.make_system(**changes))


SYSTEMS = {
    "hosted": lambda rigs: shuffled(rigs),
    "edge": lambda rigs: shuffled(rigs, kind="edge"),
    "counter over windows": lambda rigs: shuffled(rigs, release={"sums": "counter"}),
    "lift": lambda rigs: shuffled(rigs, lift={"holdout": 0.1, "epsilon": 3.0}),
    "paper": lambda rigs: shuffled(rigs, release={"mode": "paper", "sampling": 0.5}),
    "trusted counter": lambda _: collaborative(),
    "gaussian": lambda _: collaborative(noise="gaussian"),
    "local": lambda _: collaborative(noise_at="learner"),
    "noisy rewards": lambda _: collaborative(noise_at="learner", mechanism="noisy-reward"),
}


@pytest.fixture(params=SYSTEMS)
def system(request, rigs):
    return SYSTEMS[request.param](rigs)


def facts_of(statement):
    return {name: text for section in statement.sections for name, text in section.facts}


def test_its_figures_are_those_of_the_guarantee(system):
    promise, facts = system.promises.releases, facts_of(statement_of(system))
    assert facts["epsilon for one unit"] == epsilon_text(promise.epsilon_micro)
    assert facts["delta for one unit"] == delta_text(promise.delta_units)
    assert facts["epsilon and delta over a life"] == f"{promise.lifetime.cost}, for {promise.units_in_life}"
    assert facts["mechanism"] == promise.mechanism
    for fact in (*promise.not_protected, *promise.conditions):
        assert fact in facts.values()


def test_the_lift_is_stated_with_what_it_costs_and_what_both_cost_together(rigs):
    system = SYSTEMS["lift"](rigs)
    lift = lift_guarantee(system.config.lift, 1)
    both = system.promises.releases.lifetime.cost + lift.lifetime.cost
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
    assert OPEN_IN["hosted"] in system.promises.releases.not_protected
    statement = statement_of(system)
    facts = facts_of(statement)
    for said in (facts["model of trust"], statement.registry["model of differential privacy"]):
        assert said.startswith("central")
        assert "hosted: the operator's learner workers" in said
        assert "see rewards in clear; everybody after them sees noised" in said
        assert ("the trusted counter" in said) is (system.config.release.noise_at == "server")
    resent = [fact for fact in system.promises.releases.conditions if "--accept-loss" in fact]
    assert bool(resent) is (system.config.release.noise_at == "server")
    assert ("learner workers" in facts["adds the noise"]) is (system.config.release.noise_at == "learner")
    assert "where the reward arises" not in system.promises.releases.mechanism


def test_a_life_that_promises_nothing_is_said_in_words():
    statement = statement_of(collaborative(epsilon=2.0, horizon=10_000, rewards_per_user=1000))
    said = "for one person as a whole nothing is promised; only single rewards are protected"
    assert facts_of(statement)["what that means"] == said
    assert statement.registry["lifetime"] == f"epsilon 2000, delta 1; {said}"
    page = statement_page(statement)
    assert page.index(f"F{said[1:]}.") < page.index("Who, and what for</h2>")
    assert statement.as_json()["warning"] == said
    fine = statement_of(collaborative(rewards_per_user=9))
    assert fine.as_json()["warning"] is None
    assert "what that means" not in facts_of(fine)
    assert 'class="mark"' not in statement_page(fine)


def test_every_topic_has_its_retention_and_every_private_one_its_readers(system):
    facts = facts_of(statement_of(system))
    sections = {section.title: dict(section.facts) for section in statement_of(system).sections}
    for topic in system.topics:
        assert f"topic {topic.name}" in sections["Retention and erasure"]
        if topic.zone in ("edge", "shuffler", "counter"):
            readable = sections["Who can read raw data"][f"topic {topic.name}"]
            assert all(reader in readable for reader in readers(topic, system.roles))
        elif topic.zone == "published":
            assert topic.name in facts["published topics"]


def test_what_an_erasure_leaves_is_said_of_the_system_at_hand(system):
    erasure = facts_of(statement_of(system))["erasure of a user"]
    assert ("no release names the user again" in erasure) is (system.kind == "colin")
    assert ("under a keyed hash" in erasure) is (system.kind == "p2b" and system.config.kind == "hosted")
    assert ("on the device" in erasure) is (system.kind == "p2b" and system.config.kind == "edge")


def test_what_stands_in_clear_of_colin_is_named_with_how_long_it_is_kept():
    """Releases name each user by a number for 90 days; decisions live as long as the deployment."""
    statement = statement_of(collaborative())
    stands = next(dict(s.facts) for s in statement.sections if s.title == "Where content of persons stands")
    released = [text for name, text in stands.items() if name.startswith("releases, ")]
    assert released == ["published zone; deleted after 90 days"] * 2
    assert any("by the user's number" in name and "features each user was shown" in name for name in stands)
    (decided,) = [text for name, text in stands.items() if name.startswith("decisions, ")]
    assert decided == "edge zone; kept for the life of the deployment"


def test_kind_edge_is_said_to_hold_no_context_click_or_decision_anywhere(rigs):
    hosted, edge = (SYSTEMS[name](rigs) for name in ("hosted", "edge"))
    stands = json.dumps(statement_of(edge).as_json()["sections"]["Where content of persons stands"])
    assert not any(topic in stands for topic in ("contexts", "clicks", "decisions"))
    held, beside = ({content.topic for content in system.promises.releases.contents} for system in (edge, hosted))
    assert held == {"reports", "crowds", "models"}
    assert beside - held == {"contexts", "clicks", "decisions"}
    sections = {section.title: dict(section.facts) for section in statement_of(edge).sections}
    facts = sections["Who can read raw data"]
    assert "no topic of the deployment holds contexts, clicks or decisions" in facts["model of trust"]
    assert facts["topic reports"] == "readable by shuffler; written by whoever relays for users' devices, shuffler"
    assert sections["Custody of keys"]["key of each user"].startswith("on the user's device")
    assert "key of the edge zone" not in sections["Custody of keys"]


def test_sensitivities_are_given_in_a_unit(rigs):
    """In units of 2^-24 of a feature times a reward: features are at most sqrt(4) long in L1, so 2^25, rounded up."""
    sums = facts_of(statement_of(SYSTEMS["hosted"](rigs)))["sensitivity"]
    assert sums == "1, joint L1 distance of the two sums of one cell, in reward levels"
    counted = facts_of(statement_of(collaborative()))["sensitivity"]
    assert counted.startswith(f"{2**25 + 1}, L1 distance of one leaf, 4 coordinates, in units of 2^-24 of a feature")
    lift = facts_of(statement_of(SYSTEMS["lift"](rigs)))["sensitivity of the lift"]
    assert lift.startswith("40, L1 distance of one leaf, 4 coordinates, in reward levels, 1 to a whole reward")


@pytest.mark.parametrize(
    ("epsilon", "high", "low"), [(1.0, "73.2", "26.8"), (0.1, "52.5", "47.5"), (3.0, "95.3", "4.7")]
)
def test_the_worked_example_says_what_even_odds_become(rigs, epsilon, high, low):
    """e^epsilon to one: from 50 % to at most e^epsilon / (1 + e^epsilon), rounded up, and no less than the rest."""
    example = facts_of(statement_of(shuffled(rigs, release={"epsilon": epsilon})))["example"]
    assert f"at most {high} % and at least {low} % likely" in example
    assert "Ann's slot" in example


def test_the_worked_example_of_a_life_that_promises_nothing_says_so(rigs):
    facts = facts_of(statement_of(collaborative(epsilon=2.0, rewards_per_user=1000)))
    assert facts["the same for one person's whole life"].endswith("they may know for certain: nothing is promised.")
    paper = facts_of(statement_of(SYSTEMS["paper"](rigs)))["example"]
    assert "no figure bounds what they learn" in paper


def test_the_verdict_is_the_first_line_with_the_price_of_a_unit_and_of_a_life(rigs):
    statement = statement_of(shuffled(rigs, slot={"lifetime_slots": 12}))
    promise = statement_of(shuffled(rigs, slot={"lifetime_slots": 12})).guarantee
    assert list(statement.as_json())[:3] == ["sentence", "odds", "verdict"]
    assert statement.verdict.startswith("Private as stated: one slot of one user pays epsilon 1, delta ")
    assert "one person in a whole life epsilon 12, " in statement.verdict
    assert promise["lifetime"]["warning"] in statement.verdict
    assert "Private as stated" not in statement_of(SYSTEMS["paper"](rigs)).verdict
    replayed = statement_of(shuffled(rigs, public_dataset=True))
    assert replayed.marks == ("NOT PRIVATE AS STATED", "REPRODUCIBLE, NOT PRIVATE")
    assert facts_of(replayed)["data"] == "public"


def test_exact_sums_are_not_private_as_stated():
    statement = statement_of(collaborative(mechanism="exact"))
    assert statement.marks == ("NOT PRIVATE AS STATED",)
    assert statement.guarantee["private_as_stated"] is False
    assert statement.guarantee["unnoised"] == ["releases", "models"]
    assert "leaves un-noised on releases, models" in statement.verdict


def test_it_never_calls_data_anonymous(system):
    statement = statement_of(system, OperatorFacts(operator="Shop Ltd"))
    for text in (json.dumps(statement.as_json()), statement_page(statement)):
        assert "anonym" not in text.lower()


def test_a_weaker_release_than_claimed_stands_marked_before_everything_else(rigs):
    system = SYSTEMS["paper"](rigs)
    statement = statement_of(system)
    assert statement.marks == ("NOT PRIVATE AS STATED",)
    page = statement_page(statement)
    assert page.index("NOT PRIVATE AS STATED") < page.index("Parameters and unit of privacy</h2>")


def test_the_page_holds_every_fact_and_takes_none_as_markup(system):
    statement = statement_of(system, OperatorFacts(operator="<b>Shop</b>", purpose="to recommend"))
    page = statement_page(statement)
    assert "&lt;b&gt;Shop&lt;/b&gt;" in page
    assert "<b>Shop" not in page
    parts = page[page.index("<main>") : page.index("<footer>")]
    assert parts.count("<dt>") == sum(len(s.facts) for s in statement.sections) + len(statement.registry)


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
