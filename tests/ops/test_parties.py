"""Walls between vendors that share a deployment, as the declared access rules have them."""

from __future__ import annotations

from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.conversation import conversation_of
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import DeclarationError
from hushstream.ops.access.acl_rules import Principals, Rule, accounts_of, rules_of
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PUBLISHED
from hushstream.systems.pdap.system import KIND

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


def test_no_account_of_a_vendor_opens_what_is_another_vendors(placement: str) -> None:
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


def test_what_holds_content_in_clear_is_a_vendors_own_but_for_the_one_trusted_counters(placement: str) -> None:
    system = deployed(placement)
    trusted = {role.zone for role in system.roles if not party_of(role.name)}
    shared = {topic.name for topic in system.topics if topic.zone != PUBLISHED and not topic.party}
    assert {topic.zone for topic in system.topics if topic.name in shared} <= trusted
    assert ("outcomes" in shared) == (placement == "serving")


def test_a_learner_writes_forwards_to_the_other_vendors_alone_and_each_reads_its_own() -> None:
    found = rights(rules_of(deployed("serving"), PREFIX, Principals.of()))
    forwards = {(who, topic, how) for who, topic, how in found if topic.startswith("forwards.")}
    written = {(f"learner.{one}", f"forwards.{other}", "Write") for one in VENDORS for other in VENDORS if one != other}
    read = {(who, f"forwards.{one}", "Read") for one in VENDORS for who in (f"client.{one}", "operator")}
    assert forwards == written | read


def test_each_vendors_workers_have_a_group_and_a_key_of_their_own(placement: str) -> None:
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


def test_one_principal_for_two_vendors_is_refused() -> None:
    system = deployed("serving")
    with pytest.raises(HushstreamError, match="a principal of its own for each role, got"):
        rules_of(system, PREFIX, Principals.of(["learner.one=User:x", "learner.two=User:x"]))
    with pytest.raises(HushstreamError, match=r"User:learner\.two for learner\.one and learner\.two"):
        rules_of(system, PREFIX, Principals.of(["learner.one=User:learner.two"]))
    assert {"learner.one", "client.two", "letters-edge.three"} <= set(accounts_of(system))
    assert not {"learner", "client"} & set(accounts_of(system))


@pytest.mark.parametrize(("system", "party"), [("pdap", ""), ("pdap", "four"), ("p2b", "one")])
def test_who_asks_says_whose_users_they_are(deployment: Any, system: str, party: str) -> None:
    asked = deployed("home") if system == "pdap" else deployment.system
    expected = r"one of its parties \(one, two, three\)" if system == "pdap" else "no party's name"
    with pytest.raises(DeclarationError, match=f"expected {expected}, got {party or 'none'}"):
        conversation_of(asked, party)
    assert conversation_of(deployed("home"), "two") == ("contexts.two", ("clicks.two",), "decisions.two")
