"""The aggregator as a role: versions by releases and by ends of phases, the same bytes however it is cut."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.engine.records import ReplayMismatch
from hushstream.schemas import codec
from hushstream.systems.pdol.aggregator import parse_release
from hushstream.systems.pdol.algorithm.aggregate import Aggregate
from hushstream.systems.pdol.system import KIND, declare


@pytest.fixture(scope="session")
def pdol(pdol_rigs):
    return pdol_rigs


@pytest.fixture
def domains(pdol):
    system = pdol.make_system()
    rigs = [pdol.NodeRig(system, partition=partition) for partition in range(2)]
    for rig in rigs:
        rig.play(0, 11)
        rig.end_phase(0)
        rig.fold()
    return rigs


def test_versions_are_those_of_the_stage(pdol, domains):
    rig = pdol.AggregatorRig(domains[0].system)
    rig.take_from(*domains)
    stage, expected = Aggregate(rig.system.config), []
    for domain in domains:
        for fields in domain.sums():
            stage.on_release(parse_release(fields))
            if stage.due:
                expected.append(stage.publish().weights)
    expected.append(stage.publish().weights)
    found = [np.frombuffer(model["weights"], "<i4") for model in rig.models]
    assert len(found) == len(expected) > 2
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [model["phase"] for model in rig.models] == [-1] * (len(found) - 1) + [0], "the phase ends with a version"


def test_a_repeat_counts_once_and_what_is_no_release_not_at_all(pdol, domains):
    rig = pdol.AggregatorRig(domains[0].system)
    value = domains[0].seen.releases("releases")[0].value
    name, fields = codec.decode(value)
    for content in (value, value):
        rig.put("releases", content)
    changes = ({"domain": 9}, {"leaf": 99}, {"sums": bytes(9)}, {"sums": bytes(8)}, {"config_digest": bytes(16)})
    for number, change in enumerate(changes):
        bad = {**fields, "release_id": number.to_bytes(16, "big"), **change}
        rig.put("releases", codec.encode(name, bad))
    rig.put("releases", b"junk")
    seen = rig.fold()
    assert sum(step.counts.get("repeated_release", 0) for step in seen.steps) == 1
    assert sum(step.counts.get("release", 0) for step in seen.steps) == 1
    assert seen.reasons[:5] == ["malformed_release"] * 4 + ["other_configuration"]
    assert len(seen.letters) == 6


def test_a_version_follows_when_the_only_domain_that_it_waits_for_has_left(pdol, domains):
    rig = pdol.AggregatorRig(domains[0].system)
    rig.put("releases", domains[0].seen.releases("releases")[0].value)
    assert rig.fold().journals == []
    for node in (7, 1):
        fields = {"node": node, "present": False, "config_digest": rig.system.digest}
        rig.put("releases", codec.encode("Membership", fields))
    seen = rig.fold()
    assert seen.reasons == ["malformed_release"], "there is no node 7"
    assert [model["releases"] for model in rig.models] == [1]
    fresh = rig.fresh()
    rig.replayed(fresh)
    assert fresh.snapshot() == rig.machine.snapshot()


def test_an_impossibly_long_sum_is_screened_and_counted(pdol, domains):
    rig = pdol.AggregatorRig(domains[0].system)
    name, fields = codec.decode(domains[0].seen.releases("releases")[0].value)
    wild = np.full(pdol.DIMENSION, 1 << 30, "<i8").tobytes()
    rig.put("releases", codec.encode(name, {**fields, "sums": wild}))
    rig.put("releases", domains[1].seen.releases("releases")[0].value)
    rig.fold()
    assert [(model["screened"], model["releases"]) for model in rig.models] == [(1, 1)]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_where_a_batch_was_cut_a_snapshot_and_the_journal_lead_to_the_same_bytes(pdol, domains, size):
    whole, cut = pdol.AggregatorRig(domains[0].system), pdol.AggregatorRig(domains[0].system)
    whole.take_from(*domains)
    for domain in domains:
        for output in domain.seen.releases("releases"):
            cut.put("releases", output.value)
    while cut.arrived():
        (part,) = cut.arrived()
        high = min(part.high, part.low + size)
        cut.take([part._replace(high=high, records=part.records[: high - part.low])])
        held = cut.machine.snapshot()
        cut.machine = cut.fresh()
        cut.machine.start(cut.genesis)
        cut.machine.restore(held)
    assert cut.journal == whole.journal
    again = whole.fresh()
    whole.replayed(again)
    assert again.snapshot() == whole.machine.snapshot()


def test_a_model_that_does_not_follow_from_its_releases_is_a_mismatch(pdol, domains):
    rig = pdol.AggregatorRig(domains[0].system)
    rig.take_from(*domains)
    log = rig.logs["releases", 0]
    name, fields = codec.decode(log[0].value)
    halved = np.frombuffer(fields["sums"], "<i8") // 2
    log[0] = log[0]._replace(value=codec.encode(name, {**fields, "sums": halved.astype("<i8").tobytes()}))
    with pytest.raises(ReplayMismatch):
        rig.replayed(rig.fresh())


# The room.


@pytest.mark.parametrize("counter", ["blt", "negative-digit", "exact"])
def test_every_topic_with_content_is_declared_in_the_zone_that_the_guarantee_says(pdol, counter):
    system = declare(pdol.make_system(sharing={"counter": counter}))
    declared = {topic.name: topic for topic in system.topics}
    for content in system.promises.releases.contents:
        assert content.zone == declared[content.topic].zone
    assert {content.topic for content in system.promises.releases.contents} == {
        "records", "predictions", "releases", "models",
    }  # fmt: skip
    assert bool(system.promises.releases.unnoised) == (counter == "exact")


def test_the_declaration_is_whole(pdol):
    system = declare(pdol.make_system())
    assert system.role_names == ("node", "aggregator")
    assert {topic.name for topic in system.topics} <= {topic.name for topic in KIND.topics}
    assert system.erasure.homes("ann", 5) == (0, 1, 2, 3, 4), "a person may have records at any node"
    assert (system.partitions["records"], system.partitions["models"]) == (2, 1)
    assert [topic.name for topic in system.topics if topic.names_users] == ["records"]
    assert {topic.name for topic in system.topics if topic.noised} == {"releases", "ledger"}
