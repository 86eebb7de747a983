"""The statement for a data-protection officer says what the code promises, and never more."""

from __future__ import annotations

import json
import re

import pytest

from hushstream.engine.declare.flows import readers
from hushstream.ops.statement.statement import NOT_STATED, OperatorFacts, statement_of
from hushstream.privacy.amounts import delta_text
from hushstream.privacy.mechanisms.guarantee import OPEN_IN
from hushstream.privacy.promises.sentence import price_text
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


def _on(promise):
    return ", ".join(promise.unnoised)


def test_its_figures_are_those_of_the_guarantee(system):
    promises, promise, facts = system.promises, system.promises.releases, facts_of(statement_of(system))
    life, beside = (
        promises.together,
        "" if not promise.unnoised else f"; not of what leaves un-noised on {_on(promise)}",
    )
    assert facts["which of two it was"] == f"{promise.replace_one}{beside}"
    if promise.public_participation:
        assert facts["what one person's rewards were"] == f"{price_text(life.which)}{beside}"
        assert facts["that there was any"] == "public; nothing is promised of it"
    else:
        assert facts["which of two things one person did"] == f"{life.which}{beside}"
        assert facts["whether they took part at all"] == f"{life.took_part}{beside}"
        assert facts["whether it was there at all"] == f"{promise.cost}{beside}"
    assert promise.units_in_life in facts["counted of one person"]
    assert facts["mechanism"] == promise.mechanism
    for fact in (*promise.not_protected, *promise.conditions):
        assert fact in facts.values()


def test_the_lift_is_stated_with_what_it_costs_and_what_both_cost_together(rigs):
    system = SYSTEMS["lift"](rigs)
    lift = lift_guarantee(system.config.lift, 1)
    both = system.promises.together
    life = system.promises.releases.lifetime
    assert both.took_part == life.cost + lift.lifetime.cost
    assert both.which == life.exchange + lift.lifetime.exchange
    statement = statement_of(system)
    sections = {section.title: dict(section.facts) for section in statement.sections}
    own, parameters = sections["The lift over a hold-out, beside it"], sections["Parameters and unit of privacy"]
    assert own["mechanism of the lift"] == lift.mechanism
    assert own["which of two it was in the lift"] == str(lift.replace_one)
    assert own["whether it was there at all in the lift"] == str(lift.cost)
    assert set(lift.not_protected + lift.conditions) <= set(own.values())
    assert parameters["of that, the lift"].startswith(f"{lift.unit}: which of two it was, {lift.replace_one}; ")
    assert parameters["whether they took part at all"] == str(both.took_part)
    assert (both.which.epsilon_micro, both.took_part.epsilon_micro) == (8_000_000, 4_000_000)
    registry = statement.registry
    asked = "{} (which of two it was), {} (whether it was there at all)"
    assert (
        registry["epsilon"] == f"for one unit of the releases: {asked.format(2, 1)}; for the lift: {asked.format(6, 3)}"
    )
    assert registry["lifetime"].startswith(f"which of two things one person did, {both.which}; whether they")
    assert registry["lifetime"].endswith(f", {both.took_part}, with the lift")
    for name, text in (("mechanisms", lift.mechanism), ("privacy unit", lift.unit), ("budget", str(lift.cost))):
        assert text in registry[name]
    assert statement.guarantee["together"]["took_part"]["epsilon"] == 4.0
    assert statement.guarantee["together"]["which"]["epsilon"] == 8.0


def test_without_a_lift_nothing_is_said_of_one(rigs):
    for name in ("hosted", "trusted counter"):
        statement = statement_of(SYSTEMS[name](rigs))
        assert not [section for section in statement.sections if "lift" in section.title]
        hidden = "2 (which of two it was), 1 (whether it was there at all)"
        assert statement.registry["epsilon"] == (hidden if name == "hosted" else "1")
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
    said = (
        "for one person as a whole nothing is promised beyond single rewards; with privacy.units_per_person of at most "
        "4 a person is promised something"
    )
    assert facts_of(statement)["warning"] == said
    assert statement.registry["lifetime"].startswith(
        "what one person's rewards were, epsilon 2000, delta 1, so nothing is promised; "
    )
    assert statement.registry["lifetime"].endswith(said)
    assert statement.verdict.startswith(f"F{said[1:]}; private as stated for single units alone: one reward: ")
    page = statement_page(statement)
    assert page.index(f"F{said[1:]}.") < page.index("In short</h2>")
    assert statement.as_json()["warning"] == said
    fine = statement_of(collaborative(rewards_per_user=9))
    assert fine.as_json()["warning"] is None
    assert "warning" not in facts_of(fine)
    assert 'class="mark"' not in statement_page(fine)


def test_it_begins_with_a_page_in_short(system):
    """Whoever reads no further has the person, the unit, who sees what, and how much is left open."""
    first = statement_of(system).sections[0]
    assert (first.title, len(first.facts)) == ("In short", 8)
    facts = dict(first.facts)
    assert str(system.promises.together.which) in facts["one person in a whole life"]
    assert str(system.promises.releases.replace_one) in facts["one unit by itself"]
    assert facts["who sees it before the noise"] == system.words.trust


def test_nobody_is_called_he_or_she(system):
    told = json.dumps(statement_of(system).as_json())
    assert not re.search(r"\b(he|she|his|her|hers|him)\b", told)


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
    assert ("under a keyed digest" in erasure) is (system.kind == "p2b" and system.config.kind == "hosted")
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
    ("epsilon", "which", "took_part"),
    [
        (1.0, ("88.1", "11.9"), ("73.2", "26.8")),
        (0.1, ("55.0", "45.0"), ("52.5", "47.5")),
        (3.0, ("99.8", "0.2"), ("95.3", "4.7")),
    ],
)
def test_the_worked_example_says_what_even_odds_become(rigs, epsilon, which, took_part):
    """e^epsilon to one: from 50 % to at most e^epsilon / (1 + e^epsilon), rounded up, and no less than the rest."""
    system = shuffled(rigs, release={"epsilon": epsilon})
    facts, promise = facts_of(statement_of(system)), system.promises.releases
    asked = {
        "example": (which, promise.replace_one),
        "the same, had there been nothing in its place": (took_part, promise.cost),
    }
    for name, ((high, low), price) in asked.items():
        beside = f", but for a chance of at most {delta_text(price.delta_units)}."
        assert f"at most {high} % and at least {low} % likely{beside}" in facts[name]
    assert "Ann's slot" in facts["example"]


def test_every_bound_stands_with_a_delta_of_its_own(rigs):
    system = SYSTEMS["lift"](rigs)
    facts, together = facts_of(statement_of(system)), system.promises.together
    for name, price in (
        ("the same for one person's whole life", together.which),
        ("and whether they took part at all", together.took_part),
    ):
        assert facts[name].endswith(f"but for a chance of at most {delta_text(price.delta_units)}.")


def test_the_worked_example_of_a_life_that_promises_nothing_says_so(rigs):
    facts = facts_of(statement_of(collaborative(epsilon=2.0, rewards_per_user=1000)))
    assert facts["the same for one person's whole life"].endswith("they may know for certain: nothing is promised.")
    paper = facts_of(statement_of(SYSTEMS["paper"](rigs)))["example"]
    assert "no figure bounds what they learn" in paper


def test_the_verdict_is_the_first_line_with_the_price_of_a_unit_and_of_a_life(rigs):
    statement = statement_of(shuffled(rigs, slot={"lifetime_slots": 12}))
    promise = statement_of(shuffled(rigs, slot={"lifetime_slots": 12})).guarantee
    assert list(statement.as_json())[:3] == ["sentence", "odds", "verdict"]
    assert statement.verdict.startswith("For one person as a whole next to nothing is promised beyond single slots; ")
    assert "private as stated for single units alone: one slot of one user: which of two it was" in statement.verdict
    fine = statement_of(shuffled(rigs)).verdict
    assert fine.startswith("Private as stated for one person: which of two things one person did, epsilon 2, delta ")
    assert promise["lifetime"]["warning"][1:] in statement.verdict
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
