"""The rights of each role follow from the topic declarations, keep the trust zones apart, and are compared rightly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from hushstream.agents.worker.deployment import parse_config
from hushstream.broker import EmbeddedBroker
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import role_of
from hushstream.ops import access as acls
from hushstream.ops.access import (
    Enforced,
    Principals,
    Rule,
    access_differences,
    accounts_of,
    duty_names,
    missing,
    rights_of,
    rules_of,
)
from hushstream.ops.check.checkpoints import From
from hushstream.ops.check.verify import verified_topics
from hushstream.ops.connection import Connection
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.system import KIND, declare

PREFIX = "small."


@pytest.fixture(scope="module")
def rules(deployment: Any) -> tuple[Rule, ...]:
    return rules_of(deployment.system, PREFIX, Principals.of())


def topics(rules: tuple[Rule, ...], role: str, operation: str) -> set[str]:
    return {
        rule.name.removeprefix(PREFIX)
        for rule in rules
        if (rule.principal, rule.kind, rule.operation) == (f"User:{role}", "topic", operation)
    }


def enforced(rules: tuple[Rule, ...]) -> list[Enforced]:
    return [Enforced(rule.principal, rule.kind, rule.name, rule.operation) for rule in rules]


def test_contexts_and_clicks_stay_with_the_learner_and_slots_with_the_shuffler(rules):
    readers = {
        role: topics(rules, role, "Read") for role in ("client", "learner", "shuffler", "aggregator", "operator")
    }
    assert [role for role, read in readers.items() if "contexts" in read or "clicks" in read] == ["learner"]
    assert [role for role, read in readers.items() if "reports" in read] == ["shuffler"]
    assert readers["client"] == {"decisions"}
    assert readers["shuffler"] == {"reports", "journal-shuffler", "marks-shuffler", "state-shuffler"}
    assert readers["aggregator"] == {"window-sums", "models", "state-aggregator"}
    assert readers["operator"] == {
        "window-sums",
        "models",
        "ledger",
        "lift",
        "ledger-edge",
        "marks-edge",
        "marks-shuffler",
    }
    for role, marks in (("learner", "marks-edge"), ("shuffler", "marks-shuffler")):
        assert {who for who, read in readers.items() if marks in read} == {role, "operator"}


def test_nobody_reads_the_dead_letters_of_two_zones_and_no_role_reads_any(rules):
    may_read = {(rule.principal, rule.name.removeprefix(PREFIX)) for rule in rules if rule.operation == "Read"}
    assert {pair for pair in may_read if pair[1].startswith("dead-letters-")} == {
        (f"User:letters-{zone}", f"dead-letters-{zone}") for zone in ("edge", "shuffler", "server")
    }
    for zone in ("edge", "shuffler", "server"):
        assert [(rule.name, rule.operation) for rule in rules if rule.principal == f"User:letters-{zone}"] == [
            (f"{PREFIX}dead-letters-{zone}", "Read")
        ]
    assert not [rule for rule in rules if rule.principal == "User:letters-counter"]


def test_a_duty_in_one_zone_reads_no_other_zones_dead_letters(deployment):
    zones = {"learner": "edge", "shuffler": "shuffler", "aggregator": "server"}
    for role, zone in zones.items():
        named = [f"verify-{role}=User:inspector", f"requeue-{zone}=User:desk"]
        found = rules_of(deployment.system, PREFIX, Principals.of(named))
        for who in ("inspector", "desk"):
            read = {rule.name for rule in found if (rule.principal, rule.operation) == (f"User:{who}", "Read")}
            assert {name for name in read if "dead-letters" in name} == {f"{PREFIX}dead-letters-{zone}"}


def test_two_zones_dead_letters_may_not_be_given_to_one_account():
    with pytest.raises(HushstreamError, match="a principal of its own for each role"):
        Principals.of(["letters-edge=User:desk", "letters-shuffler=User:desk"])


def test_who_needs_an_account_is_told_from_the_deployment(deployment):
    assert accounts_of(deployment.system) == (
        "learner", "shuffler", "aggregator", "client", "operator", "letters-edge", "letters-shuffler", "letters-server",
    )  # fmt: skip


def test_only_its_role_writes_a_journal_sums_or_a_model(rules):
    writers = {
        role: topics(rules, role, "Write") for role in ("client", "learner", "shuffler", "aggregator", "operator")
    }
    for topic, owner in {
        "decisions": "learner",
        "journal-shuffler": "shuffler",
        "window-sums": "shuffler",
        "models": "aggregator",
        "ledger": "shuffler",
        "marks-edge": "learner",
        "marks-shuffler": "shuffler",
        "state-learner": "learner",
        "state-shuffler": "shuffler",
        "contexts": "client",
    }.items():
        assert [role for role, written in writers.items() if topic in written] == [owner], topic
    assert writers["client"] == {"contexts", "clicks"}


def test_who_requeues_is_named_and_may_read_and_write_the_inputs_of_one_zone(deployment):
    named = rules_of(deployment.system, PREFIX, Principals.of(["requeue-edge=User:desk", "requeue-server=User:other"]))
    without = rules_of(deployment.system, PREFIX, Principals.of())
    found = {(rule.principal, rule.name.removeprefix(PREFIX), rule.operation) for rule in set(named) - set(without)}
    assert found == {
        ("User:desk", "dead-letters-edge", "Read"),
        *(("User:desk", topic, one) for topic in ("contexts", "clicks") for one in ("Read", "Write")),
        ("User:other", "dead-letters-server", "Read"),
        *(("User:other", topic, one) for topic in ("window-sums",) for one in ("Read", "Write")),
    }
    assert set(without) < set(named)
    with pytest.raises(HushstreamError, match="expected a zone of deployment small, got requeue-counter"):
        rules_of(deployment.system, PREFIX, Principals.of(["requeue-counter=User:desk"]))


def test_who_verifies_or_exports_is_named_and_may_read_what_that_needs_and_write_nothing(deployment):
    named = Principals.of(["verify-learner=User:one", "verify-shuffler=User:two", "export=User:owner"])
    found = set(rules_of(deployment.system, PREFIX, named)) - set(rules_of(deployment.system, PREFIX, Principals.of()))
    assert {(rule.kind, rule.operation) for rule in found} == {("topic", "Read")}
    read = {who: {rule.name.removeprefix(PREFIX) for rule in found if rule.principal == f"User:{who}"}
            for who in ("one", "two", "owner")}  # fmt: skip
    assert read["one"] == {
        "contexts", "clicks", "decisions", "reports", "models", "lift", "ledger-edge",
        "dead-letters-edge", "marks-edge", "state-learner",
    }  # fmt: skip
    assert read["two"] == {
        "reports", "journal-shuffler", "window-sums", "ledger", "dead-letters-shuffler", "marks-shuffler",
        "state-shuffler",
    }  # fmt: skip
    assert read["owner"] == set(deployment.system.partitions)
    assert read["one"] == verified_topics(deployment.system, ["learner"], From.CHECKPOINT)
    assert read["one"] - verified_topics(deployment.system, ["learner"]) == {"marks-edge", "state-learner"}
    with pytest.raises(HushstreamError, match=r"expected a role of deployment small \(.*\), got verify-counter"):
        rules_of(deployment.system, PREFIX, Principals.of(["verify-counter=User:one"]))


REQUEUED = {
    "p2b": {"edge": {"contexts", "clicks"}, "shuffler": {"reports"}, "server": {"window-sums"}},
    "colin": {"edge": {"contexts", "clicks"}, "counter": {"rewards"}, "server": {"releases"}},
}
"""What whoever requeues in a zone may write."""

VERIFIED = {
    "p2b": {
        "learner": {"contexts", "clicks", "decisions", "reports", "models", "dead-letters-edge"},
        "shuffler": {"reports", "journal-shuffler", "window-sums", "ledger", "dead-letters-shuffler"},
        "aggregator": {"window-sums", "models", "dead-letters-server"},
    },
    "colin": {
        "learner": {"contexts", "clicks", "decisions", "rewards", "models", "dead-letters-edge"},
        "counter": {"rewards", "journal-counter", "releases", "ledger", "dead-letters-counter"},
        "aggregator": {"releases", "models", "dead-letters-server"},
    },
}
"""What whoever verifies a role may read, beside its marks and its states."""


@pytest.mark.parametrize("name", VERIFIED)
def test_a_duty_of_either_system_is_for_these_topics_by_name(rigs, related, name):
    systems = {
        "p2b": lambda: declare(rigs.make_system(public_dataset=True)),
        "colin": lambda: declare_colin(related.make_system()),
    }
    system = systems[name]()
    for zone, topics in REQUEUED[name].items():
        both, read = frozenset({"Read", "Write"}), frozenset({"Read"})
        assert rights_of(f"requeue-{zone}", system) == {**dict.fromkeys(topics, both), f"dead-letters-{zone}": read}
    for role, topics in VERIFIED[name].items():
        own = role_of(system, role).own
        assert rights_of(f"verify-{role}", system) == dict.fromkeys({*topics, *own}, frozenset({"Read"}))
    assert rights_of("export", system) == dict.fromkeys(system.partitions, frozenset({"Read"}))
    asked = dict.fromkeys(("contexts", "clicks"), frozenset({"Write"}))
    shown = dict.fromkeys(("decisions", *system.overview_topics, *system.similar_topics), frozenset({"Read"}))
    assert rights_of("gateway", system) == {**asked, **shown}
    assert "ledger" in shown
    named = {*(f"requeue-{zone}" for zone in REQUEUED[name]), *(f"verify-{role}" for role in VERIFIED[name])}
    duties = {*named, "gateway", "export"}
    for duty in set(duty_names()) - duties:
        with pytest.raises(HushstreamError, match=f"got {duty}"):
            rights_of(duty, system)


@pytest.mark.parametrize("from_requests", [False, True])
def test_a_gateway_changes_the_items_as_whoever_has_an_operators_token_asks_it_to(from_requests):
    items = {"capacity": 3, "named": True, "from_requests": from_requests}
    features = {"age": {"kind": "number", "range": [16, 96]}}
    values = {"deployment": "shop", "expected_slots": 100, "features": features, "release": {"form": "features"}}
    system = KIND.assemble(parse_config({**values, "items": items}), Artefacts("here", {}))
    assert rights_of("gateway", system)["items"] == {"Read", "Write"}


def test_rewards_in_clear_stay_with_the_learner_and_the_counter_that_is_trusted(related):
    found = {
        noise_at: rules_of(declare_colin(related.releasing(noise_at=noise_at)), PREFIX, Principals.of())
        for noise_at in ("server", "learner")
    }
    roles = ("client", "learner", "counter", "aggregator", "operator")
    read, written = (
        {noise_at: {role: topics(rules, role, right) for role in roles} for noise_at, rules in found.items()}
        for right in ("Read", "Write")
    )
    assert [role for role in roles if "rewards" in read["server"][role]] == ["counter"]
    own = {"decisions", "marks-edge", "state-learner", "dead-letters-edge"}
    assert written["server"]["learner"] == {*own, "rewards"}
    assert written["learner"]["learner"] == {*own, "releases", "ledger"}
    assert read["learner"]["counter"] == written["learner"]["counter"] == set()
    for noise_at in found:
        assert read[noise_at]["client"] == {"decisions"}
        assert read[noise_at]["aggregator"] == {"releases", "models", "state-aggregator"}


def test_each_worker_has_its_own_group_and_nobody_another(rules):
    assert {(rule.principal, rule.name, rule.operation) for rule in rules if rule.kind == "group"} == {
        (f"User:{role}", f"small.{role}", "Read") for role in ("learner", "shuffler", "aggregator")
    }


def test_no_right_beyond_these_is_ever_given(rules):
    assert {rule.operation for rule in rules} == {"Read", "Write", "Describe", "DescribeConfigs"}
    assert {rule.principal for rule in rules if rule.operation == "Describe"} == {"User:operator"}


def test_what_is_there_in_full_is_neither_missing_nor_too_much(rules):
    assert not access_differences(rules, enforced(rules), ())


def test_every_single_rule_that_is_taken_away_is_missed_and_named(rules):
    for rule in rules:
        left = [
            one
            for one in enforced(rules)
            if str(rule) != f"{one.operation} on {one.kind} {one.name} for {one.principal}"
        ]
        found = access_differences(rules, left, ())
        carried = rule.operation == "Describe" and any(
            (one.principal, one.name, one.operation) == (rule.principal, rule.name, "Read") for one in left
        )
        assert [one.rule for one in found] == ([] if carried else [str(rule)])
        assert all("`hushstream topics apply` creates it" in str(one) for one in found)


@pytest.mark.parametrize(
    "one",
    [
        Enforced("User:aggregator", "topic", "small.contexts", "Read"),
        Enforced("User:aggregator", "topic", "small.", "Read", prefixed=True),
        Enforced("User:shuffler", "topic", "*", "Write"),
        Enforced("User:*", "topic", "small.models", "Read"),
        Enforced("User:shuffler", "topic", "small.reports", "All"),
        Enforced("User:stranger", "group", "small.learner", "Describe"),
        Enforced("User:learner", "topic", "small.contexts", "Delete"),
        Enforced("User:stranger", "topic", "small.ledger", "Describe", host="10.0.0.1"),
    ],
)
def test_a_rule_that_gives_more_is_excess(rules, one):
    found = access_differences(rules, [*enforced(rules), one], ())
    assert [(difference.what, difference.rule) for difference in found] == [("excess", str(one))]
    assert not access_differences(rules, [*enforced(rules), one], {one.principal})


@pytest.mark.parametrize(
    "one",
    [
        Enforced("User:aggregator", "topic", "other.contexts", "Read"),
        Enforced("User:aggregator", "topic", "smaller", "Read", prefixed=True),
        Enforced("User:learner", "topic", "small.contexts", "Describe"),
        Enforced("User:stranger", "topic", "small.contexts", "Read", allows=False),
    ],
)
def test_rules_of_others_carried_rights_and_denials_of_strangers_are_no_difference(rules, one):
    assert not access_differences(rules, [*enforced(rules), one], ())


@pytest.mark.parametrize(
    "one",
    [
        Enforced("User:learner", "topic", "small.contexts", "Read", allows=False),
        Enforced("User:*", "topic", "*", "All", allows=False),
        Enforced("User:learner", "topic", "small.", "All", host="10.0.0.1", prefixed=True, allows=False),
    ],
)
def test_a_denial_of_what_is_needed_is_named(rules, one):
    assert ("denied", str(one)) in [(d.what, d.rule) for d in access_differences(rules, [*enforced(rules), one], ())]


def test_a_right_for_one_host_only_is_not_enough(rules):
    bound = [replace(one, host="10.0.0.1") for one in enforced(rules)]
    assert missing(rules, bound) == rules


def test_a_rule_on_a_beginning_or_on_all_gives_the_right(rules):
    for broad in (
        Enforced("User:learner", "topic", "small.", "All", prefixed=True),
        Enforced("User:learner", "topic", "*", "All"),
    ):
        left = missing(rules, [broad])
        assert not [rule for rule in left if rule.principal == "User:learner" and rule.kind == "topic"]


def test_principals_are_named_role_by_role():
    named = Principals.of(["learner=User:CN=learner,O=shop", "administrator=User:admin"])
    assert named.by_role["learner"] == "User:CN=learner,O=shop"
    assert named.by_role["shuffler"] == "User:shuffler"
    assert named.administrators == {"User:admin"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("learner", "expected ROLE=TYPE:NAME"),
        ("learner=bob", "expected ROLE=TYPE:NAME"),
        ("lerner=User:bob", "with one of the roles client, learner"),
        ("learner=User:shuffler", "a principal of its own for each role"),
        ("learner=User:*", "a principal of its own for each role"),
        ("requeue-edge=User:learner", "a principal of its own for each role"),
        ("requeue-somewhere=User:bob", "requeue-edge, requeue-shuffler"),
        ("verify-learner=User:learner", "a principal of its own for each role"),
        (
            "verify-client=User:bob",
            "verify-shuffler, verify-aggregator, verify-counter, verify-node, verify-rater, verify-collector, "
            "devices, gateway, export",
        ),
    ],
)
def test_principals_that_are_misspelt_or_shared_are_refused(text, says):
    with pytest.raises(HushstreamError, match=says.replace("*", r"\*")):
        Principals.of([text])


# On a broker that enforces nothing, access rules are said to be absent, never to be in order.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker() as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("call", [acls.plan_async, acls.apply_async, acls.check_async])
async def test_the_embedded_broker_is_known_to_have_no_authorizer(broker, deployment, call):
    assert await call(Connection(broker.bootstrap, "small."), deployment.system, Principals.of()) is None
