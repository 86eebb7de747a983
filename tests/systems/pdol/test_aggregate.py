"""The model and its role: a function of releases, the same in any order of arrival, to the last bit."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.systems.pdol.conftest import DIMENSION, HORIZON, SLOTS, config_of, node_of, random_model, records

from hushstream.counting import Concentrated
from hushstream.engine.records import ReplayMismatch
from hushstream.engine.values import ConfigurationError
from hushstream.schemas import codec
from hushstream.systems.pdol.aggregator import parse_release
from hushstream.systems.pdol.algorithm.aggregate import Aggregate, Taken, longest, too_long
from hushstream.systems.pdol.algorithm.counters import NodeRelease, figures_of, noise_of, plan_of
from hushstream.systems.pdol.algorithm.moments import WEIGHT_BITS, leaf_of
from hushstream.systems.pdol.algorithm.rows import BadRelease
from hushstream.systems.pdol.configuration import UNIT, ModelConfig, PdolConfig, RecordConfig, SharingConfig
from hushstream.systems.pdol.system import KIND, declare


def released(domain: int, leaves: int, values: np.ndarray, generation: int = 0) -> NodeRelease:
    return NodeRelease(domain, generation, leaves, leaves * SLOTS, values.astype(np.int64), leaves == HORIZON)


def some_values(seed: int, size: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).integers(-size, size, DIMENSION)


def in_floats(config: PdolConfig, versions: list[tuple[list[np.ndarray], list[int]]]) -> np.ndarray:
    """The formulas as they are written, in floats: the last of some versions."""
    spread = noise_of(config.sharing, DIMENSION).variance
    before, energy = np.zeros(DIMENSION), np.zeros(DIMENSION)
    for sums, leaves in versions:
        slots = np.array(leaves) * float(config.sharing.slots_per_release)
        a = slots / (slots + DIMENSION * spread / UNIT**2)
        weights = a / a.max()
        direction = -np.sum(weights[:, None] * np.array(sums, dtype=float), axis=0)
        energy += (direction - before) ** 2
        before = direction
    least = config.model.threshold * math.sqrt(spread) * float(np.linalg.norm(weights))
    return config.radius * np.sign(before) * np.maximum(np.abs(before) - least, 0) / np.sqrt(energy)


@pytest.mark.parametrize("counter", ["blt", "negative-digit", "exact"])
def test_a_version_is_what_the_formulas_say(counter):
    config = config_of(counter)
    aggregate, versions = Aggregate(config), []
    for step, leaves in enumerate(([1, 2], [2, 3], [3, 4])):
        sums = [(step + 1) * some_values(domain) for domain in (0, 1)]
        versions.append((sums, leaves))
        for domain in (0, 1):
            aggregate.on_release(released(domain, leaves[domain], sums[domain]))
        assert aggregate.due
        found = aggregate.publish().weights / UNIT
        # Weights are cut to 2^-16, models to 2^-12.
        assert found == pytest.approx(in_floats(config, versions), abs=2.0**-11)


def test_the_model_is_the_same_on_every_platform():
    config = config_of(nodes=5)
    aggregate = Aggregate(config)
    digest = hashlib.sha256()
    for step in range(1, HORIZON + 1):
        for domain in range(5):
            aggregate.on_release(released(domain, step, step * some_values(100 * step + domain)))
        digest.update(aggregate.publish().weights.astype("<i4").tobytes())
    assert digest.hexdigest()[:16] == "4369280cc6e90340"


def test_the_order_of_releases_within_a_version_does_not_matter():
    found = []
    for order in ((0, 1, 2), (2, 0, 1)):
        aggregate = Aggregate(config_of(nodes=3))
        for step in (1, 2):
            for domain in order:
                aggregate.on_release(released(domain, step, some_values(10 * step + domain)))
            aggregate.publish()
        found.append(aggregate.model.weights.tolist())
    assert found[0] == found[1]


def test_a_release_that_was_lost_is_made_good_by_the_next():
    whole, lossy = Aggregate(config_of(nodes=1)), Aggregate(config_of(nodes=1))
    for step in range(1, 4):
        whole.on_release(released(0, step, step * some_values(1, 2000)))
    lossy.on_release(released(0, 3, 3 * some_values(1, 2000)))
    assert whole.publish().weights.tolist() == lossy.publish().weights.tolist()


def test_late_and_repeated_releases_change_nothing():
    aggregate = Aggregate(config_of(nodes=2))
    aggregate.on_release(released(0, 2, some_values(1)))
    before = aggregate.dump()
    for stale in (released(0, 2, some_values(9)), released(0, 1, some_values(9))):
        assert aggregate.on_release(stale) is Taken.STALE
    after = aggregate.dump()
    assert all((before[name] == after[name]).all() for name in before)


def test_a_full_counters_sum_stands_beside_the_new_one():
    """Two full counters of one domain weigh as two domains with a full counter each."""
    one, two = config_of("exact", nodes=1), config_of("exact", nodes=2)
    first, second = some_values(1), some_values(2)
    turned, apart = Aggregate(one), Aggregate(two)
    turned.on_release(released(0, HORIZON, first))
    turned.on_release(released(0, HORIZON, second, generation=1))
    apart.on_release(released(0, HORIZON, first))
    apart.on_release(released(1, HORIZON, second))
    assert turned.publish().weights.tolist() == apart.publish().weights.tolist()
    assert turned.on_release(released(0, 1, first)) is Taken.STALE


def test_counters_with_little_to_say_are_muted():
    config = config_of(epsilon=0.5)
    aggregate = Aggregate(config)
    aggregate.on_release(released(0, 1, np.zeros(DIMENSION)))
    aggregate.on_release(released(1, HORIZON, np.zeros(DIMENSION)))
    weights, frozen = aggregate.weights()
    energy = DIMENSION * noise_of(config.sharing, DIMENSION).variance / UNIT**2
    little, much = SLOTS / (SLOTS + energy), HORIZON * SLOTS / (HORIZON * SLOTS + energy)
    assert weights.tolist() == [round(little / much * 2**WEIGHT_BITS), 2**WEIGHT_BITS]
    assert not frozen.any()


def test_weights_stay_far_within_int32_whatever_is_released():
    aggregate, versions = Aggregate(config_of("exact", nodes=1)), 40
    for step in range(versions):
        leaves, generation = step % HORIZON + 1, step // HORIZON
        aggregate.on_release(released(0, leaves, np.full(DIMENSION, leaves * 4000), generation))
        model = aggregate.publish()
        assert np.abs(model.weights).max() <= 0.5 * UNIT * math.sqrt(step + 1) + 1


def test_an_impossibly_long_release_is_counted_and_passed_over():
    config = config_of(nodes=2)
    aggregate, clean = Aggregate(config), Aggregate(config)
    limit = longest(noise_of(config.sharing, DIMENSION), SLOTS, leaf_of(DIMENSION), 0, 1)
    long, short = np.zeros(DIMENSION), np.zeros(DIMENSION)
    long[3], short[3] = limit + 1, limit
    for one in (aggregate, clean):
        one.on_release(released(1, 1, some_values(1)))
    assert aggregate.on_release(released(0, 1, long)) is Taken.SCREENED
    assert aggregate.screened == 1
    assert aggregate.due
    assert aggregate.publish().weights.tolist() == clean.publish().weights.tolist()
    assert clean.on_release(released(0, 1, short)) is Taken.TAKEN


@pytest.mark.parametrize("counter", ["blt", "negative-digit"])
def test_honest_releases_pass_the_screen_also_after_losses(counter):
    """At most e^-18 of them would not: none of 400 is expected, and a tenth of the noise as limit stops most."""
    screened = 0
    for seed in range(40):
        config = config_of(counter, nodes=1)
        aggregate, node = Aggregate(config), node_of(config, seed=seed)
        for step in range(10):
            node.fold(records(SLOTS, seed), random_model(step))
            release = node.release()
            if step % 3:
                assert aggregate.on_release(release) is not Taken.STALE
        screened += aggregate.screened
    assert screened == 0


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, -(1 << 20), (1 << 40) - 1, -(1 << 40)])
def test_lengths_are_compared_without_rounding(size):
    vector = np.array([size, size, -size, 1], dtype=np.int64)
    exact = 3 * size * size + 1
    root = math.isqrt(exact)
    assert too_long(vector, root) == (exact > root * root)
    assert not too_long(vector, root + 1)
    assert too_long(vector, max(0, root - 1))


@pytest.mark.parametrize(
    ("domain", "generation", "leaves", "values"),
    [
        (-1, 0, 1, np.zeros(DIMENSION, np.int64)),
        (2, 0, 1, np.zeros(DIMENSION, np.int64)),
        (0, -1, 1, np.zeros(DIMENSION, np.int64)),
        (0, 0, 0, np.zeros(DIMENSION, np.int64)),
        (0, 0, HORIZON + 1, np.zeros(DIMENSION, np.int64)),
        (0, 0, 1, np.zeros(DIMENSION)),
        (0, 0, 1, np.zeros(DIMENSION + 1, np.int64)),
    ],
)
def test_a_release_that_no_domain_can_have_made_is_refused(domain, generation, leaves, values):
    with pytest.raises(BadRelease, match="release: expected"):
        Aggregate(config_of()).on_release(NodeRelease(domain, generation, leaves, 1, values, False))


def test_the_figures_of_the_noise_are_those_of_the_counters():
    for counter in ("blt", "negative-digit"):
        sharing = SharingConfig(counter, 1.0, 1e-6, 14, 32)
        plan, noise = plan_of(sharing, 501), noise_of(sharing, 501)
        assert math.sqrt(noise.variance) == pytest.approx(plan.rmse(), rel=1e-9)
        left = plan.factorisation(32).left
        scale = plan.noise.variance * (4.0**-plan.fine_bits if counter == "blt" else 1)
        for before, after in ((0, 1), (0, 5), (3, 4), (7, 29), (31, 32)):
            rows = left[after - 1] - (left[before - 1] if before else 0)
            exact = scale * float(rows @ rows)
            found = noise.increment(before, after)
            assert found == pytest.approx(exact, rel=1e-9) if counter == "blt" else found >= exact
    assert noise_of(replace(sharing, counter="exact"), 501).variance == 0


@pytest.mark.parametrize(
    ("epsilon", "sigma", "horizon", "factor"),
    [(0.5, 8.68, 16, 1.80), (1, 4.53, 32, 2.01), (2, 2.38, 64, 2.23), (4, 1.27, 256, 2.66), (8, 0.695, 1024, 3.06)],
)
def test_the_noise_has_the_published_size(epsilon, sigma, horizon, factor):
    rho = float(Concentrated.for_epsilon(epsilon, 1e-6).rho)
    assert 1 / math.sqrt(2 * rho) == pytest.approx(sigma, rel=2e-3)
    found = figures_of(plan_of(SharingConfig("blt", epsilon, 1e-6, 1, horizon), 501))
    assert math.sqrt(found.variance) / (sigma * UNIT) == pytest.approx(factor, rel=4e-3)


def test_a_version_is_due_after_as_many_releases_as_are_asked_for():
    config = PdolConfig(
        "tests",
        4,
        RecordConfig(DIMENSION),
        SharingConfig("blt", 8.0, 1e-6, SLOTS, HORIZON),
        ModelConfig(releases_per_version=2),
    )
    aggregate = Aggregate(config)
    aggregate.on_release(released(3, 1, some_values(1)))
    assert not aggregate.due
    aggregate.on_release(released(1, 1, some_values(1)))
    assert aggregate.due
    assert aggregate.publish().version == 1
    assert not aggregate.due


def test_the_others_do_not_wait_for_domains_that_are_dead():
    aggregate = Aggregate(config_of(nodes=4))
    for domain in (0, 1, 2):
        aggregate.on_release(released(domain, 1, some_values(domain)))
        assert not aggregate.due
    aggregate.on_release(released(0, 2, some_values(0)))
    assert aggregate.due
    aggregate.publish()
    aggregate.on_release(released(1, 2, some_values(1)))
    assert not aggregate.due
    lively = Aggregate(config_of(nodes=8))
    for leaves in (1, 2, 3, 4):
        # One lively domain does not make versions of its own: half of all that is asked for must have come.
        assert not lively.due
        lively.on_release(released(0, leaves, some_values(0)))
    assert lively.due


def test_once_releases_were_missed_a_version_waits_for_about_as_many_as_come_and_then_for_more_again():
    config = PdolConfig("tests", 16, RecordConfig(DIMENSION), SharingConfig("blt", 8.0, 1e-6, SLOTS, 16))
    aggregate, places = Aggregate(config), []
    for leaves in range(1, 13):
        for domain in range(12 if leaves < 5 else 16):
            aggregate.on_release(released(domain, leaves, some_values(domain)))
            if aggregate.due:
                aggregate.publish()
                places.append((leaves, domain))
    # The first round without four of them ends when the next begins: 13 releases, so the next version waits for 11.
    assert places[:4] == [(2, 0), (2, 11), (3, 11), (5, 0)]
    (before, last), (after, again) = places[-2:]
    assert (after - before, last) == (1, again), "all sixteen come again, and all are waited for"
    restored = Aggregate(config)
    restored.load(aggregate.dump())
    assert restored.publish().weights.tolist() == aggregate.publish().weights.tolist()
    assert restored.dump()["counts"].tolist() == aggregate.dump()["counts"].tolist()


def test_no_version_waits_for_a_node_that_has_left_and_what_it_released_stands():
    aggregate = Aggregate(config_of(nodes=4))
    for node in range(4):
        aggregate.on_release(released(node, 1, some_values(node)))
    aggregate.publish()
    for node in (2, 3):
        aggregate.on_membership(node, present=False)
    restored = Aggregate(config_of(nodes=4))
    restored.load(aggregate.dump())
    for one in (aggregate, restored):
        one.on_release(released(0, 2, some_values(5)))
        assert not one.due
        one.on_release(released(1, 2, some_values(6)))
        assert one.due
        assert (one.weights()[0] > 0).all(), "sums of those that left stand"
    aggregate.publish()
    aggregate.on_membership(3, present=True)
    aggregate.on_release(released(0, 3, some_values(5)))
    aggregate.on_release(released(1, 3, some_values(6)))
    assert not aggregate.due
    aggregate.on_release(released(3, 2, some_values(7)))
    assert aggregate.due
    with pytest.raises(BadRelease, match="expected a node below 4, got 4"):
        aggregate.on_membership(4, present=True)


def test_domains_may_have_leaves_of_their_own_length():
    sharing = SharingConfig("blt", 0.5, 1e-6, (2, 20), HORIZON)
    config = PdolConfig("tests", 2, RecordConfig(DIMENSION), sharing)
    aggregate = Aggregate(config)
    for domain in (0, 1):
        aggregate.on_release(released(domain, 1, np.zeros(DIMENSION)))
    energy = DIMENSION * noise_of(config.sharing, DIMENSION).variance / UNIT**2
    expected = [round((2 / (2 + energy)) / (20 / (20 + energy)) * 2**WEIGHT_BITS), 2**WEIGHT_BITS]
    assert aggregate.weights()[0].tolist() == expected
    assert [node_of(config, domain).capacity_left for domain in (0, 1)] == [2, 20]
    with pytest.raises(ConfigurationError, match="one for each of 3 domains, got 2"):
        replace(config, nodes=3)


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
    found = [np.frombuffer(model["weights"], "<i8") for model in rig.models]
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
    wild = np.full(leaf_of(pdol.DIMENSION).cells, 1 << 34, "<i8").tobytes()
    rig.put("releases", codec.encode(name, {**fields, "sums": wild}))
    rig.put("releases", domains[1].seen.releases("releases")[0].value)
    rig.fold()
    assert [(model["screened"], model["releases"]) for model in rig.models] == [(1, 1)]


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


def test_the_declaration_is_whole(pdol):
    system = declare(pdol.make_system())
    assert system.role_names == ("node", "aggregator")
    assert {topic.name for topic in system.topics} <= {topic.name for topic in KIND.topics}
    assert system.erasure.homes("ann", 5) == (0, 1, 2, 3, 4), "a person may have records at any node"
    assert (system.partitions["records"], system.partitions["models"]) == (2, 1)
    assert [topic.name for topic in system.topics if topic.names_users] == ["records"]
    assert {topic.name for topic in system.topics if topic.noised} == {"releases", "ledger"}
