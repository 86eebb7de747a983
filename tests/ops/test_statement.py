"""The statement: what is promised to whom, what each party sees, and what stands un-noised on which topic."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

import pytest
from onlooker import Seen, watched

from hushstream.agents.worker.deployment import KeySource, parse_config
from hushstream.agents.worker.roles import all_machines, role_work
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import System, conversation_of, readers
from hushstream.engine.declare.role import DeclarationError
from hushstream.engine.devices.sealing import Recipients
from hushstream.engine.devices.signing import SigningKeys
from hushstream.ops.access import Principals, Rule, accounts_of, rules_of
from hushstream.ops.statement import NOT_STATED, OperatorFacts, statement_of
from hushstream.privacy.amounts import delta_text
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.guarantee import OPEN_IN
from hushstream.privacy.promises.page import page_json, page_text
from hushstream.privacy.promises.promise import Form
from hushstream.privacy.promises.sentence import larger_units, price_text
from hushstream.replay.report.parts import statement_page
from hushstream.replay.runners.direct import DirectDriver, MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PUBLISHED, Topic
from hushstream.systems.colin.configuration import CollaborativeConfig, ContinualConfig, FeatureConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.lift import lift_guarantee, required_lift
from hushstream.systems.p2b.system import declare as declare_p2b
from hushstream.systems.pdap.system import KIND


def collaborative(**release):
    graph = SocialGraph.of_edges([("ann", "bob", 1.0), ("bob", "cat", 1.0)])
    config = CollaborativeConfig(
        "clubs", 5, FeatureConfig(4), release=ContinualConfig(**{"mechanism": "negative-digit", **release})
    )
    return declare_colin(CollaborativeSystem.of(config, graph))


def shuffled(rigs, **changes):
    return declare_p2b(rigs.make_system(**changes))


def on_devices():
    config = P2BConfig(
        "shop",
        3,
        ContextConfig(declared={"country": {"kind": "category", "vocabulary": ["de", "fr"]}}),
        20_000,
        kind="edge",
        release=ReleaseConfig(sums="fresh"),
    )
    keys = (Recipients.first(seeded_key(1, "sealing")), SigningKeys.first(seeded_key(1, "signing")))
    return declare_p2b(P2BSystem.declared(config, False, None, *keys))


SYSTEMS = {
    "hosted": lambda rigs: shuffled(rigs),
    "edge": lambda _: on_devices(),
    "counter over windows": lambda rigs: shuffled(rigs, release={"sums": "counter"}),
    "lift": lambda rigs: shuffled(rigs, measurement={"own": 0.1, "epsilon": 3.0}),
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
    promises, promise, facts = system.guarantee(), system.guarantee(), facts_of(statement_of(system))
    life, beside = (
        promises.together,
        "" if not promise.unnoised else f"; not of what leaves un-noised on {_on(promise)}",
    )
    assert facts["replace-one"] == f"{price_text(promise.replace_one)}{beside}"
    if promise.any_content:
        assert facts["what one person's rewards were, replace-one"] == f"{price_text(life.which)}{beside}"
        assert facts["participation"] == "public; nothing is guaranteed of it"
    else:
        assert facts["one person, replace-one"] == f"{price_text(life.which)}{beside}"
        assert facts["one person, zero-out"] == f"{price_text(life.zero_out)}{beside}"
        assert facts["zero-out"] == f"{price_text(promise.cost)}{beside}"
    assert promise.units_in_life in facts["counted of one person"]
    assert facts["mechanism"] == promise.mechanism
    for fact in (*promise.not_protected, *promise.conditions):
        assert fact in facts.values()


def test_the_lift_is_stated_with_what_it_costs_and_what_both_cost_together(rigs):
    system = SYSTEMS["lift"](rigs)
    lift = lift_guarantee(*required_lift(system.config))
    both = system.guarantee().together
    life = system.guarantee().lifetime
    assert both.zero_out == life.cost + lift.lifetime.cost
    assert both.which == life.exchange + lift.lifetime.exchange
    statement = statement_of(system)
    sections = {section.title: dict(section.facts) for section in statement.sections}
    own, parameters = sections["The lift, beside it"], sections["Parameters and unit of privacy"]
    assert own["mechanism of the lift"] == lift.mechanism
    assert own["replace-one in the lift"] == str(lift.replace_one)
    assert own["zero-out in the lift"] == str(lift.cost)
    assert set(lift.not_protected + lift.conditions) <= set(own.values())
    assert parameters["of that, the lift"].startswith(f"{lift.unit}, replace-one: {price_text(lift.replace_one)}; ")
    assert parameters["one person, zero-out"] == str(both.zero_out)
    assert (both.which.epsilon_micro, both.zero_out.epsilon_micro) == (8_000_000, 4_000_000)
    registry = statement.registry
    asked = "{} (replace-one), {} (zero-out)"
    assert (
        registry["epsilon"] == f"for one unit of the releases: {asked.format(2, 1)}; for the lift: {asked.format(6, 3)}"
    )
    assert registry["lifetime"].startswith(f"one person, replace-one: {both.which}; one person, zero-out: ")
    assert registry["lifetime"].endswith(f": {both.zero_out}, with the lift")
    for name, text in (("mechanisms", lift.mechanism), ("privacy unit", lift.unit), ("budget", str(lift.cost))):
        assert text in registry[name]
    assert statement.guarantee["person"]["zero_out"]["epsilon"] == 4.0
    assert statement.guarantee["person"]["which"]["epsilon"] == 8.0


def test_without_a_lift_nothing_is_said_of_one(rigs):
    for name in ("hosted", "trusted counter"):
        statement = statement_of(SYSTEMS[name](rigs))
        assert not [section for section in statement.sections if "lift" in section.title]
        hidden = "2 (replace-one), 1 (zero-out)"
        assert statement.registry["epsilon"] == (hidden if name == "hosted" else "1")
        assert "lift" not in statement.guarantee


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
        assert ("the trusted counter" in said) is (system.config.release.noise_at == "server")
    resent = [fact for fact in system.guarantee().conditions if "--accept-loss" in fact]
    assert bool(resent) is (system.config.release.noise_at == "server")
    assert ("learner workers" in facts["adds the noise"]) is (system.config.release.noise_at == "learner")
    assert "where the reward arises" not in system.guarantee().mechanism


def test_a_life_that_promises_nothing_is_said_in_words():
    statement = statement_of(collaborative(epsilon=2.0, horizon=10_000, rewards_per_user=1000))
    said = (
        "for one person as a whole nothing is guaranteed beyond single rewards; with privacy.units_per_person of at "
        "most 4 a person is guaranteed something"
    )
    assert facts_of(statement)["warning"] == said
    assert statement.registry["lifetime"].startswith(
        "what one person's rewards were, replace-one: epsilon 2000, delta 1, so nothing is guaranteed; "
    )
    assert statement.registry["lifetime"].endswith(said)
    assert statement.verdict.startswith(
        f"F{said[1:]}; private as stated for single units alone: one reward, replace-one: "
    )
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
    assert price_text(system.guarantee().together.which) in facts["one person in a whole life"]
    assert price_text(system.guarantee().replace_one) in facts["one unit by itself"]
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
    held, beside = ({content.topic for content in system.guarantee().contents} for system in (edge, hosted))
    assert held == {"reports", "window-sums", "models", "statements"}
    assert beside - held == {"contexts", "clicks", "decisions"}
    sections = {section.title: dict(section.facts) for section in statement_of(edge).sections}
    facts = sections["Who can read raw data"]
    assert "no topic of the deployment holds contexts, clicks or decisions" in facts["model of trust"]
    assert facts["topic reports"] == "readable by shuffler; written by the gateway for users' devices, shuffler"
    assert sections["Custody of keys"]["key of each user"].startswith("on the user's device")
    assert "key of the edge zone" not in sections["Custody of keys"]


def test_sensitivities_are_given_in_a_unit(rigs):
    """In units of 2^-24 of a feature times a reward: features are at most sqrt(4) long in L1, so 2^25, rounded up."""
    sums = facts_of(statement_of(SYSTEMS["hosted"](rigs)))["sensitivity"]
    assert sums == "1, joint L1 distance of the two sums of one cell, in reward levels"
    counted = facts_of(statement_of(collaborative()))["sensitivity"]
    assert counted.startswith(f"{2**25 + 1}, L1 distance of one leaf, 4 coordinates, in units of 2^-24 of a feature")
    lift = facts_of(statement_of(SYSTEMS["lift"](rigs)))["sensitivity of the lift"]
    assert lift.startswith("5, L1 distance of one leaf, 6 coordinates, in reward levels, 1 to a whole reward")


@pytest.mark.parametrize(
    ("epsilon", "which", "zero_out"),
    [
        (1.0, ("88.1", "11.9"), ("73.2", "26.8")),
        (0.1, ("55.0", "45.0"), ("52.5", "47.5")),
        (3.0, ("99.8", "0.2"), ("95.3", "4.7")),
    ],
)
def test_the_worked_example_says_what_even_odds_become(rigs, epsilon, which, zero_out):
    """e^epsilon to one: from 50 % to at most e^epsilon / (1 + e^epsilon), rounded up, and no less than the rest."""
    system = shuffled(rigs, release={"epsilon": epsilon})
    facts, promise = facts_of(statement_of(system)), system.guarantee()
    asked = {
        "example": (which, promise.replace_one),
        "the same, had there been nothing in its place (zero-out)": (zero_out, promise.cost),
    }
    for name, ((high, low), price) in asked.items():
        beside = f" (more, or less, each with a chance of at most {delta_text(larger_units(price))})."
        assert f"at most {high} % and at least {low} % likely{beside}" in facts[name]
    assert "Ann's report" in facts["example"]


def test_every_bound_stands_with_a_delta_of_its_own(rigs):
    system = SYSTEMS["lift"](rigs)
    facts, together = facts_of(statement_of(system)), system.guarantee().together
    for name, price in (
        ("the same for one person's whole life", together.which),
        ("and under zero-out", together.zero_out),
    ):
        assert facts[name].endswith(f"each with a chance of at most {delta_text(larger_units(price))}).")


def test_the_worked_example_of_a_life_that_promises_nothing_says_so(rigs):
    facts = facts_of(statement_of(collaborative(epsilon=2.0, rewards_per_user=1000)))
    assert facts["the same for one person's whole life"].endswith("they may know for certain: nothing is guaranteed.")
    paper = facts_of(statement_of(SYSTEMS["paper"](rigs)))["example"]
    assert "no figure bounds what they learn" in paper


def test_the_verdict_is_the_first_line_with_the_price_of_a_unit_and_of_a_life(rigs):
    statement = statement_of(shuffled(rigs, slot={"lifetime_slots": 12}))
    promise = statement_of(shuffled(rigs, slot={"lifetime_slots": 12})).guarantee
    assert list(statement.as_json())[:3] == ["sentence", "odds", "verdict"]
    assert statement.verdict.startswith("For one person as a whole next to nothing is guaranteed beyond single reports")
    assert "private as stated for single units alone: one report of one user, replace-one" in statement.verdict
    fine = statement_of(shuffled(rigs)).verdict
    assert fine.startswith("Private as stated for one person: one person, replace-one: epsilon 2, delta ")
    assert promise["person"]["warning"][1:] in statement.verdict
    assert "Private as stated" not in statement_of(SYSTEMS["paper"](rigs)).verdict
    replayed = statement_of(shuffled(rigs, public_dataset=True))
    assert replayed.marks == ("REPRODUCIBLE, NOT PRIVATE",)
    assert facts_of(replayed)["data"] == "public"


def test_exact_sums_are_not_private_as_stated():
    statement = statement_of(collaborative(mechanism="exact"))
    assert statement.marks == ("NOT PRIVATE AS STATED",)
    assert statement.guarantee["private_as_stated"] is False
    assert [one["topic"] for one in statement.guarantee["seen"] if one["leaves_unnoised"]] == ["releases", "models"]
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


def test_the_flavour_is_pure_only_where_all_of_delta_is_truncation():
    assert statement_of(collaborative()).registry["flavour"].startswith("pure")
    assert statement_of(collaborative(noise="gaussian")).registry["flavour"] == "(epsilon, delta)"


@pytest.mark.parametrize(
    ("values", "message"),
    [({"owner": "x"}, "got 'owner'"), ({"operator": 3}, "expected text for operator"), ({"purpose": " "}, "purpose")],
)
def test_unknown_or_empty_facts_are_refused(values, message):
    with pytest.raises(HushstreamError, match=message):
        OperatorFacts.of(values)


PREFIX = "shops."
VENDORS = ("one", "two", "three")
IN_CLEAR = {"serving": {"contexts", "clicks", "decisions"}, "home": {"contexts", "clicks", "decisions", "outcomes"}}


def deployed(placement: str) -> System:
    vendors = [{"name": name, "items": {"capacity": 2}} for name in VENDORS]
    release = {"placement": placement}
    values = {
        "system": "pdap",
        "deployment": "shops",
        "features": {"dimension": 2},
        "vendors": vendors,
        "release": release,
    }
    return KIND.assemble(parse_config(values), Artefacts("here", {}))


@pytest.fixture(params=["serving", "home"])
def placement(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def party_of(name: str) -> str:
    return name.partition(".")[2]


def rights(rules: tuple[Rule, ...]) -> set[tuple[str, str, str]]:
    """(account, topic, operation) of every right to what a topic holds."""
    return {
        (rule.principal.removeprefix("User:"), rule.name.removeprefix(PREFIX), rule.operation)
        for rule in rules
        if rule.kind == "topic" and rule.operation in ("Read", "Write")
    }


def test_no_account_of_a_vendor_opens_what_is_another_vendors(placement):
    system = deployed(placement)
    every = [f"{duty}.{name}" for duty in ("verify-learner", "requeue-edge") for name in VENDORS]
    found = rights(rules_of(system, PREFIX, Principals.of([f"{duty}=User:{duty}" for duty in every])))
    published = {topic.name for topic in system.topics if topic.zone == PUBLISHED}
    private = {(who, topic, how) for who, topic, how in found if party_of(topic) and topic not in published}
    for who, topic, how in private:
        # The operator may see that journals have released, which is all that marks say without their key.
        assert party_of(who) == party_of(topic) or (who == "operator" and topic.startswith("marks-")), (who, topic, how)
    # It is no wall of empty rooms: each vendor's own accounts reach all that holds content in clear.
    for vendor in VENDORS:
        reached = {topic for who, topic, how in private if party_of(who) == vendor and how == "Read"}
        assert {f"{name}.{vendor}" for name in IN_CLEAR[placement]} <= reached


def test_what_holds_content_in_clear_is_a_vendors_own_but_for_the_one_trusted_counters(placement):
    system = deployed(placement)
    trusted = {role.zone for role in system.roles if not party_of(role.name)}
    shared = {topic.name for topic in system.topics if topic.zone != PUBLISHED and not topic.party}
    assert {topic.zone for topic in system.topics if topic.name in shared} <= trusted
    assert ("outcomes" in shared) == (placement == "serving")


def test_a_learner_writes_forwards_to_the_other_vendors_alone_and_each_reads_its_own():
    found = rights(rules_of(deployed("serving"), PREFIX, Principals.of()))
    forwards = {(who, topic, how) for who, topic, how in found if topic.startswith("forwards.")}
    written = {(f"learner.{one}", f"forwards.{other}", "Write") for one in VENDORS for other in VENDORS if one != other}
    read = {(who, f"forwards.{one}", "Read") for one in VENDORS for who in (f"client.{one}", "operator")}
    assert forwards == written | read


def test_each_vendors_workers_have_a_group_and_a_key_of_their_own(placement):
    system = deployed(placement)
    groups = {(rule.principal, rule.name) for rule in rules_of(system, PREFIX, Principals.of()) if rule.kind == "group"}
    assert groups == {(f"User:{name}", f"shops.{name}") for name in system.role_names}
    learners = [role for role in system.roles if role.name.startswith("learner.")]
    assert [role.key_zone for role in learners] == [f"edge.{name}" for name in VENDORS]
    machines = [role_work(role.name, system, KeySource(seed=1)).make_machine(0) for role in learners]
    assert len({machine.genesis(bytes(32)) for machine in machines}) == len(VENDORS)
    assert [machine.inputs for machine in machines] == [
        ((f"contexts.{name}", 0), (f"clicks.{name}", 0)) for name in VENDORS
    ]


def test_one_principal_for_two_vendors_is_refused():
    system = deployed("serving")
    with pytest.raises(HushstreamError, match="a principal of its own for each role, got"):
        rules_of(system, PREFIX, Principals.of(["learner.one=User:x", "learner.two=User:x"]))
    with pytest.raises(HushstreamError, match=r"User:learner\.two for learner\.one and learner\.two"):
        rules_of(system, PREFIX, Principals.of(["learner.one=User:learner.two"]))
    assert {"learner.one", "client.two", "letters-edge.three"} <= set(accounts_of(system))
    assert not {"learner", "client"} & set(accounts_of(system))


@pytest.mark.parametrize(("system", "party"), [("pdap", ""), ("pdap", "four"), ("p2b", "one")])
def test_who_asks_says_whose_users_they_are(deployment, system, party):
    asked = deployed("home") if system == "pdap" else deployment.system
    expected = r"one of its parties \(one, two, three\)" if system == "pdap" else "no party's name"
    with pytest.raises(DeclarationError, match=f"expected {expected}, got {party or 'none'}"):
        conversation_of(asked, party)
    assert conversation_of(deployed("home"), "two") == ("contexts.two", ("clicks.two",), "decisions.two")


NONCE = bytes(range(32))
SEEDS = (1, 2, 3, 4)
TARGET, USERS, ROUNDS = "user-0", 24, 3
START_MS = 1_700_000_000_000

# With a coin that keeps nearly all, what `paper` lets through is the reports themselves.
MODES: Mapping[str, Mapping[str, Any]] = {
    "slot-sums": {"mode": "slot-sums"},
    "counter": {"mode": "slot-sums", "sums": "counter", "windows": 8},
    "tuples": {"mode": "tuples", "sampling": 0.5, "threshold": 2},
    "paper": {"mode": "paper", "sampling": 0.999999, "threshold": 1},
}
SHUFFLED = {
    f"{mode}{', lift' * lift}{', public' * public}": (mode, lift, public)
    for mode, lift, public in product(MODES, (0, 1), (0, 1))
}
RELEASES: Mapping[str, Mapping[str, Any]] = {
    f"{noise_at}, {mechanism}, {noise}": {"noise_at": noise_at, "mechanism": mechanism, "noise": noise}
    for noise_at, mechanism, noise in (
        *product(("server", "learner"), ("negative-digit", "binary"), ("laplace", "k-norm", "gaussian")),
        *product(("server", "learner"), ("blt",), ("gaussian",)),
        *product(("server", "learner"), ("noisy-reward",), ("laplace",)),
        ("server", "exact", "laplace"),
    )
}


def shuffled_of(rigs: Any, name: str) -> System:
    mode, lift, public = SHUFFLED[name]
    changes = {"learner": {"alpha": 0.05}, "measurement": {"own": 0.3 * lift, "releases": 8}}
    made = rigs.make_system(release={**MODES[mode], "window_slots": 1000}, **changes)
    return declare_p2b(P2BSystem.of(made.config, rigs.lattice(), bool(public)))


class History:
    """What reaches the broker: the target's content is one of two, and all else is the same."""

    def __init__(self, system: System, content: int, seed: int) -> None:
        self.system, self.content, self.seed = system, content, seed
        self.now_ms = START_MS
        self.log = MemoryLog(lambda: self.now_ms)
        self.driver = DirectDriver(self.log, all_machines(system, KeySource(seed=seed)), NONCE)

    def put(self, topic: str, schema: str, **fields: Any) -> None:
        self.now_ms += 100
        self.log.append(topic, 0, codec.encode(schema, fields))
        self.driver.pump()

    def interact(self, event_id: str, user: str, context: Any, reward: float, arm: int | None, arms: int) -> None:
        only = b"" if arm is None else (1 << arm).to_bytes((arms + 7) // 8, "little")
        line = {"line": "cold"} if self.system.kind == "p2b" else {}
        self.put("contexts", "Context", event_id=event_id, user=user, context=context, eligible=only, **line)
        if arm is not None:
            for kind, worth in (("shown", 0.0), ("reward", reward)):
                self.put("clicks", "Feedback", kind=kind, event_id=event_id, user=user, arm=arm, reward=worth)

    def end_phase(self, topic: str, origin: int, phase: int) -> None:
        self.now_ms += 30_000
        self.put(topic, "Seal", phase=phase, origin=origin, config_digest=self.system.digest, after_click=-1)

    def bad_records(self) -> None:
        """What is refused, with the target's content in it: it becomes dead letters."""
        click = {"kind": "reward", "event_id": "bad", "user": TARGET, "arm": 0, "reward": 7.0 + self.content}
        self.put("clicks", "Feedback", **click)


class ShuffledHistory(History):
    """Users of p2b, each of whom sends one slot through a hosted learner."""

    def play(self, rigs: Any) -> MemoryLog:
        for number in range(USERS):
            content = self.content if number == 0 else 0
            context, arm, reward = rigs.point(number + content), number % 4, float((number + content) % 2)
            for visit in range(ROUNDS):
                event_id = f"user-{number}:{visit}"
                self.interact(event_id, f"user-{number}", context.tobytes(), reward, arm, self.system.config.arms)
        self.bad_records()
        self.end_phase("contexts", -1, 0)
        # With one arm learned from and little to explore, the target's answers follow the target's content.
        for number in range(4):
            self.interact(f"free-{number}", TARGET, rigs.point(0).tobytes(), 0.0, None, rigs.ARMS)
        self.end_phase("contexts", -1, 1)
        return self.log


class RelatedHistory(History):
    """Users of a collaborative deployment; the target's content is one reward of many."""

    def play(self, related: Any) -> MemoryLog:
        for phase in range(2):
            for number in range(5):
                for at, user in enumerate(related.USERS):
                    features = related.some_features(10 * number + at).tobytes()
                    target = (phase, number, at) == (0, 0, 0)
                    reward = float(self.content) if target else float((number + at) % 2)
                    arm = None if phase else (number + at) % related.ARMS
                    self.interact(f"{phase}:{number}:{at}", user, features, reward, arm, related.ARMS)
            if not phase:
                self.bad_records()
            self.end_phase("contexts", -1, phase)
        return self.log


@pytest.fixture(scope="module")
def play(rigs: Any, related: Any) -> Any:
    """A configuration by name: its system, and what an onlooker sees."""

    @cache
    def found(name: str) -> tuple[System, Seen]:
        def played(content: int, seed: int) -> MemoryLog:
            if name in SHUFFLED:
                return ShuffledHistory(shuffled_of(rigs, name), content, seed).play(rigs)
            return RelatedHistory(related_of(related, name), content, seed).play(related)

        system = shuffled_of(rigs, name) if name in SHUFFLED else related_of(related, name)
        return system, watched(played, (0, 1), SEEDS)

    return found


def related_of(related: Any, name: str) -> System:
    release = {**related.DEFAULTS["release"], **RELEASES[name]}
    return declare_colin(related.make_system(release=release, public_dataset="exact" in name))


def topics_by_name(system: System) -> Mapping[str, Topic]:
    return {topic.name: topic for topic in system.topics}


def out_of_trust(system: System, seen: Seen) -> set[str]:
    """The topics with content in clear that others than those who are trusted with it may read."""
    declared = topics_by_name(system)
    return {topic for topic in seen.unnoised if declared[topic].zone not in TRUSTED[system.kind]}


CONFIGURATIONS = (*SHUFFLED, *RELEASES)
TRUSTED = {"p2b": {"edge", "shuffler"}, "colin": {"edge", "counter"}}
DIGESTS = frozenset({"head", "chain", "digest", "entry_id", "leaves"})
"""Fields with keyed digests of content, which tell nothing without the key."""


sweep = pytest.mark.sweep(
    keep=[
        "slot-sums",
        "slot-sums, lift, public",
        "counter",
        "tuples",
        "paper",
        "server, negative-digit, laplace",
        "learner, blt, gaussian",
        "learner, noisy-reward, laplace",
        "server, exact, laplace",
    ]
)


@sweep
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_guarantee_names_every_topic_on_which_content_leaves_unnoised(play, name):
    system, seen = play(name)
    promise = system.guarantee()
    outside = out_of_trust(system, seen)
    assert outside == set(promise.unnoised)
    assert promise.private_as_stated is (not outside)
    assert bool(outside) == ("paper" in name or "exact" in name)
    assert {one["topic"] for one in page_json(promise)["seen"] if one["leaves_unnoised"]} == set(promise.unnoised)
    for topic in outside:
        text = page_text(system.guarantee())
        assert re.search(
            rf"^  - {re.escape(topic)} \((published|read by operators of the .* zone)\), in clear: LEAVES UN-NOISED",
            text,
            re.MULTILINE,
        )
        assert topic in text.splitlines()[0]


@sweep
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_topic_holds_content_that_the_guarantee_does_not_name(play, name):
    system, seen = play(name)
    contents = system.guarantee().contents
    clear = {content.topic for content in contents if content.form is Form.CLEAR}
    public = {content.topic for content in contents if content.form is Form.PUBLIC}
    declared = {content.topic for content in contents}
    assert seen.unnoised <= clear | public
    assert clear <= seen.unnoised, "what is said to be in clear is seen"
    there = topics_by_name(system)
    assert declared <= there.keys()
    for topic in there.keys() - declared:
        assert seen.moved.get(topic, frozenset()) <= DIGESTS, topic
    assert all(content.zone == there[content.topic].zone for content in contents)


@sweep
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_statement_and_registry_name_what_the_guarantee_names(play, name):
    system, seen = play(name)
    statement = statement_of(system)
    outside = out_of_trust(system, seen)
    said = statement.registry["content that leaves un-noised"]
    assert set(said.split(", ")) == (outside or {"none"})
    assert statement.verdict.startswith("Not private as stated") is bool(outside)
    assert statement.registry["verdict"] == statement.as_json()["verdict"] == statement.verdict
    assert (statement.registry["epsilon"] == "none: content leaves un-noised") is bool(outside)
    declared = topics_by_name(system)
    stands = {name: text for section in statement.sections for name, text in section.facts}
    for content in system.guarantee().contents:
        text = stands[f"{content.topic}, {content.form}: {content.what}"]
        assert ("LEAVES UN-NOISED" in text) is content.leaves_unnoised
        days = declared[content.topic].retention_ms
        assert ("for the life of the deployment" if days is None else f"after {days // 86_400_000} days") in text
    page = statement_page(statement)
    assert page.index(statement.verdict) < page.index("Who, and what for</h2>")
