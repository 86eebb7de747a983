"""Topics are created as declared, once, and every difference is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aiokafka.errors import for_code

from hushstream.agents.errors import AccessDenied
from hushstream.agents.worker.declared import Kept, loss_warnings
from hushstream.ops.connection import BrokerRefused, guard_code
from hushstream.ops.topics import Existing, differences, plan
from hushstream.systems.colin.system import KIND as COLIN
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.system import KIND as P2B
from hushstream.systems.p2b.system import declare

TOPICS = {topic.name: topic for kind in (P2B, COLIN) for topic in kind.topics}
GOOD = {name: Existing(2, topic.settings()) for name, topic in TOPICS.items()}


def test_each_topic_has_the_partitions_of_its_deployment(deployment: Any) -> None:
    config = replace(
        deployment.system.config, partitions=replace(deployment.system.config.partitions, learner=7, shuffler=3)
    )
    counts = declare(P2BSystem.of(config, deployment.system.core.encoder.lattice, public_dataset=True)).partitions
    assert counts["contexts"] == counts["decisions"] == counts["dead-letters-edge"] == 7
    assert counts["reports"] == counts["ledger"] == counts["journal-shuffler"] == 3
    assert counts["crowds"] == counts["models"] == counts["interactions"] == 2


def test_without_public_data_there_are_no_interactions_and_one_line(deployment: Any) -> None:
    counts = declare(P2BSystem.of(deployment.system.config, deployment.system.core.encoder.lattice)).partitions
    assert "interactions" not in counts
    assert counts["crowds"] == counts["models"] == 1


def test_a_plan_holds_what_is_missing_and_nothing_else(deployment: Any) -> None:
    there = {name: found for name, found in GOOD.items() if name not in ("ledger", "models")}
    wanted = plan(deployment.system, there, "d.")
    assert [(new.topic, new.name, new.partitions) for new in wanted] == [
        ("models", "d.models", 2),
        ("ledger", "d.ledger", 2),
    ]
    assert wanted[1].settings["retention.ms"] == "-1"
    assert not plan(deployment.system, GOOD, "d.")


def test_no_difference_is_found_where_there_is_none(deployment: Any) -> None:
    assert not differences(deployment.system, GOOD, "d.")


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("cleanup.policy", "compact"),
        ("retention.ms", "1000"),
        ("retention.bytes", "1000000"),
        ("message.timestamp.type", "CreateTime"),
        ("max.message.bytes", "1000"),
        ("unclean.leader.election.enable", "true"),
    ],
)
def test_every_other_setting_is_named_with_both_values(deployment: Any, what: str, found: str) -> None:
    settings = {**TOPICS["reports"].settings(), what: found}
    (one,) = differences(deployment.system, {**GOOD, "reports": Existing(2, settings)}, "d.")
    assert (one.topic, one.name, one.what, one.found) == ("reports", "d.reports", what, found)
    assert one.expected == TOPICS["reports"].settings()[what]
    assert str(one) == f"topic d.reports: expected {what} {one.expected}, found {found}"


@pytest.mark.parametrize(("what", "found"), [("segment.bytes", "1073741824"), ("segment.ms", "604800000")])
def test_a_journal_whose_trimmed_bytes_stay_on_disk_is_named(deployment: Any, what: str, found: str) -> None:
    settings = {**TOPICS["decisions"].settings(), what: found}
    (one,) = differences(deployment.system, {**GOOD, "decisions": Existing(2, settings)}, "d.")
    assert (one.topic, one.what, one.found) == ("decisions", what, found)


@pytest.mark.parametrize(("what", "found"), [("cleanup.policy", "delete"), ("retention.ms", "7776000000")])
def test_marks_that_are_not_kept_for_good_by_key_are_named(deployment: Any, what: str, found: str) -> None:
    settings = {**TOPICS["marks-edge"].settings(), what: found}
    (one,) = differences(deployment.system, {**GOOD, "marks-edge": Existing(2, settings)}, "d.")
    assert (one.topic, one.what, one.found) == ("marks-edge", what, found)


def test_one_copy_in_sync_of_what_lasts_is_named_where_two_are_asked_for(deployment: Any) -> None:
    safe = {
        name: replace(found, settings={**found.settings, "min.insync.replicas": "2"}) for name, found in GOOD.items()
    }
    assert not differences(deployment.system, safe, "d.", least_in_sync=2)
    assert not differences(deployment.system, GOOD, "d.", least_in_sync=1)
    found = differences(deployment.system, GOOD, "d.", least_in_sync=2)
    assert {one.topic for one in found} == {topic.name for topic in deployment.system.topics if topic.lasting}
    assert {(one.what, one.expected, one.found) for one in found} == {("min.insync.replicas", "2 or more", "1")}


def test_another_partition_count_and_a_missing_topic_are_named(deployment: Any) -> None:
    there = {name: found for name, found in GOOD.items() if name != "crowds"}
    there["clicks"] = Existing(5, TOPICS["clicks"].settings())
    found = differences(deployment.system, there, "d.")
    assert [(one.topic, one.what, one.expected, one.found.split()[0]) for one in found] == [
        ("clicks", "partitions", "2", "5"),
        ("crowds", "topic", "to exist", "none"),
    ]


def test_topics_are_warned_of_together_where_they_are_kept_alike_and_not_where_they_are_safe() -> None:
    safe = [Kept("a", 3, 2), Kept("b", 5, 3)]
    assert loss_warnings(safe) == ()
    found = loss_warnings([*safe, Kept("d", 3, 1), Kept("c", 3, 1), Kept("e", 2, 2)])
    assert [line.partition(":")[0] for line in found] == ["topics c, d", "topics e"]
    assert "found 3 and 1" in found[0]
    assert "found 2 and 2" in found[1]
    assert all("--replication 3 --min-insync 2" in line for line in found)
    lasting = {name for name, topic in TOPICS.items() if topic.lasting}
    assert lasting == {
        "decisions", "journal-shuffler", "journal-counter", "models", "items", "ledger", "ledger-edge", "lift",
        "marks-edge", "marks-shuffler", "marks-counter",
        "state-learner", "state-shuffler", "state-counter", "state-aggregator",
    }  # fmt: skip


def test_a_missing_right_is_told_from_another_refusal() -> None:
    guard_code("create topic x", 0, None, for_code)
    for code in (29, 31):
        with pytest.raises(AccessDenied, match="create topic x: the broker's access rules forbid it"):
            guard_code("create topic x", code, None, for_code)
    with pytest.raises(BrokerRefused, match="create topic x: InvalidReplicationFactorError, too few brokers"):
        guard_code("create topic x", 38, "too few brokers", for_code)
