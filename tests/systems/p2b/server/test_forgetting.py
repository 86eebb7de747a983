"""A model that forgets: what windows weigh, what their weighed noise is, and what the sums are worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hushstream.counting import BinaryTree, NegativeDigitTree, PureEpsilon, choose_release
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.values import ConfigurationError
from hushstream.features.schema import declare
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.systems.catalogue import kind_of
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, PartitionConfig, ReleaseConfig
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.guarantee import layout_of_slots, noise_variance, release_guarantee, window_tree_of
from hushstream.systems.p2b.machines.aggregator import FeatureTotals
from hushstream.systems.p2b.machines.shuffler import RunningSums
from hushstream.systems.p2b.server.estimate import AggregationError
from hushstream.systems.p2b.server.totals import ItemTotals, WindowTotals, fade_of_sums, fade_of_windows, remembered

SCHEMA = declare({"country": {"kind": "category", "vocabulary": ["de", "fr"]}})
HALF = 0.5 ** (1 / 3)
"""Fading with a half-life of three windows."""


def config(half_life: float | None = 3.0, partitions: int = 1, **release: object) -> P2BConfig:
    return P2BConfig(
        deployment="shop",
        arms=3,
        context=ContextConfig(declared=SCHEMA),
        expected_slots=4_000,
        release=ReleaseConfig(**{"window_slots": 100, "sums": "fresh", **release}),
        partitions=PartitionConfig(shuffler=partitions),
        half_life=half_life,
    )


def tree(base: int, horizon: int, kind: type[NegativeDigitTree] = NegativeDigitTree) -> NegativeDigitTree:
    return kind(budget=PureEpsilon("1"), dimension=1, sensitivity=1, horizon=horizon, base=base)


# The noise of weighed sums.


@pytest.mark.parametrize(
    "counter", [tree(3, 120), tree(4, 120), tree(7, 120), tree(2, 120, BinaryTree), tree(40, 20)], ids=repr
)
@pytest.mark.parametrize("fade", [0.5, 0.97])
def test_the_variance_of_a_weighed_difference_of_prefixes_is_that_of_the_counters_nodes(counter, fade):
    """By the matrix of nodes, which knows nothing of digits: w L L' w' of the releases' weights w."""
    leaves = counter.horizon
    left = counter.factorisation(leaves).left
    for last in range(1, leaves + 1):
        weights = np.append(-(1 - fade) * fade ** np.arange(last - 2, -1, -1.0), 1.0)
        expected = float(((weights @ left[:last]) ** 2).sum()) * counter.noise.variance
        assert counter.faded_variance(last, fade) == pytest.approx(expected, rel=1e-9)


def test_without_fading_the_changes_are_those_of_the_total():
    counter = tree(4, 80)
    totals = np.cumsum(counter.faded_changes(1, 80, 1.0))
    means = np.cumsum(totals) / np.arange(1, 81)
    assert means == pytest.approx([counter.mean_square(leaves) for leaves in range(1, 81)])


def test_what_a_shuffler_says_of_variances_is_that_of_the_noise_in_what_an_aggregator_holds():
    """The noise itself, of 10,000 sums: the deviation of their mean square is below .0224 of their variance.

    A signed sum of Laplace noise has a kurtosis of at most 6. Five deviations: each of three comparisons has a false
    alarm with a chance of 6e-7; changes of the variance that are not weighed are off by more than a third.
    """
    counter = NegativeDigitTree(budget=PureEpsilon("1"), dimension=2_500, sensitivity=1, horizon=40, base=4)
    squares: dict[int, list[float]] = {7: [], 21: [], 40: []}
    for number in range(4):
        address = NoiseAddress("test", "shop", bytes(32), "p2b", "fading", {"n": number}, b"test", 0, None)
        running = RunningSums(counter, seeded_key(5, "shuffler"), address, HALF)
        held = WindowTotals(1, 2_500, HALF)
        for window in range(1, 41):
            step = running.step(np.zeros(2_500, dtype=np.int64))
            held.add(step.sums[None, :], np.zeros((1, 2_500), np.int64), step.variance, 10)
            if window in squares:
                squares[window].append(float((held.ones**2).mean()))
                assert held.variance == pytest.approx(counter.faded_variance(window, HALF))
    for window, found in squares.items():
        assert float(np.mean(found)) == pytest.approx(counter.faded_variance(window, HALF), rel=5 * 0.0224)


# What the aggregator holds.


def added(totals: WindowTotals, sizes: list[int], variance: float = 6.0) -> WindowTotals:
    for number, slots in enumerate(sizes):
        ones = np.full((2, 3), 100 * (number + 1), dtype=np.int64)
        totals.add(ones, 3 * ones, variance, slots)
    return totals


def test_windows_weigh_half_after_a_half_life():
    totals = added(WindowTotals(2, 3, HALF), [10] * 4)
    weights = HALF ** np.arange(3, -1, -1.0)
    assert weights[0] == pytest.approx(0.5)
    assert totals.ones[0, 0] == pytest.approx(float(weights @ [100, 200, 300, 400]))
    assert totals.variance == pytest.approx(6.0 * float((weights**2).sum()))
    assert (totals.windows, totals.slots) == (4, 40)


def test_sums_are_worth_as_many_slots_as_have_their_sampling_variance():
    sizes = [10, 40, 20]
    totals = added(WindowTotals(2, 3, HALF), sizes)
    weights = HALF ** np.arange(2, -1, -1.0)
    ratio = float(weights @ sizes) / float(weights**2 @ sizes)
    ones, zeros, variance = totals.weighted_sums()
    assert ones.dtype == zeros.dtype == np.int64
    assert ones[0, 0] == round(ratio * totals.ones[0, 0])
    assert np.asarray(variance) == pytest.approx(np.full(2, ratio**2 * totals.variance))


def test_without_a_half_life_sums_are_what_they_were():
    totals = added(WindowTotals(2, 3), [10, 40, 20])
    ones, zeros, variance = totals.weighted_sums()
    assert ones is totals.ones
    assert zeros is totals.zeros
    assert (ones.dtype, variance, int(ones[0, 0])) == (np.int64, 18.0, 600)


def test_totals_that_fade_go_on_after_a_restart_to_the_last_bit():
    whole, stopped = WindowTotals(2, 3, HALF), WindowTotals(2, 3, HALF)
    for number in range(5):
        for totals in (whole, stopped):
            added(totals, [7 + number])
        stopped = WindowTotals.load(stopped.dump(), HALF)
    assert stopped.dump() == whole.dump()
    with pytest.raises(AggregationError, match="version 1"):
        WindowTotals.load(whole.dump())
    with pytest.raises(AggregationError, match="bytes"):
        WindowTotals.load(whole.dump()[:-1], HALF)


@pytest.mark.parametrize("carried", [False, True])
def test_a_new_items_row_weighs_its_own_windows_alone(carried):
    totals = ItemTotals(2, 2, carried, HALF)
    sums = np.full((2, 2), 64, dtype=np.int64)
    for catalogue, entries in ((2, (1, 2)), (2, (1, 2)), (3, (1, 3)), (3, (1, 3))):
        totals.add(sums, sums, 4.0, 10, catalogue, np.array(entries, np.int32))
    weights = HALF ** np.arange(3, -1, -1.0)
    assert totals.ones[:, 0] == pytest.approx([64 * weights.sum(), 64 * weights[2:].sum()])
    own, before = 4.0 * float((weights[2:] ** 2).sum()), 4.0 * float((weights[:2] ** 2).sum())
    # Of a counter the row has the total less what it was: taken as both together.
    assert totals.variances[1] == pytest.approx(own + (2 * before if carried else 0.0))
    ratios = [float(one.sum() / (one**2).sum()) for one in (weights, weights[2:])]
    found = totals.weighted_sums(np.array([1]))
    assert found.ones[0, 0] == round(ratios[1] * totals.ones[1, 0])
    assert np.asarray(found.variance) == pytest.approx([ratios[1] ** 2 * totals.variances[1]])
    again = ItemTotals(2, 2, carried, HALF)
    again.load(totals.dump())
    assert again.dump() == totals.dump()


def window(system: P2BSystem, share: float) -> dict[str, object]:
    """A window of 100 slots of each item, all of one country."""
    layout = system.linear.layout
    shown = np.zeros((layout.arms, layout.cells), dtype=np.int64)
    for block, budget in zip(layout.blocks, layout.budgets, strict=True):
        shown[:, block.first_cell] = 100 * budget
    clicked = (share * shown).astype(np.int64)
    rows = system.window_rules().item_rows._asdict()
    sums = {"ones": clicked.tobytes(), "zeros": (shown - clicked).tobytes()}
    return {**system.form.domain, **rows, **sums, "variance": 10.0, "slots": 300, "private_as_stated": True}


def test_a_model_that_forgets_believes_the_newest_windows():
    """Ten windows with one share of clicks, then three with another: one of a half-life of one window follows."""
    found = {}
    for half_life in (None, 1.0):
        system = P2BSystem.declared(config(half_life))
        totals = FeatureTotals(system)
        for share in [0.1] * 10 + [0.5] * 3:
            assert totals.add(window(system, share))
        found[half_life] = totals.model()
    assert found[1.0].start.means[0, 0] > found[None].start.means[0, 0]
    assert found[None].observations == pytest.approx(3_900, rel=0.01)
    assert found[1.0].observations == pytest.approx(300 * 3, rel=0.01)


# What follows from the configuration.


def test_partitions_fade_together():
    two = config(partitions=2)
    assert fade_of_windows(two) == pytest.approx(HALF)
    assert fade_of_sums(two) ** 2 == pytest.approx(fade_of_windows(two))
    assert fade_of_sums(config(None)) == 1.0


def test_the_stated_noise_and_worth_are_those_of_the_totals():
    for chosen in (config(), config(sums="counter", windows=40)):
        counter = window_tree_of(chosen)
        totals = WindowTotals(1, 1, fade_of_sums(chosen))
        one = np.array([[1_000]])
        for window in range(1, 13):
            variance = 36.0 if counter is None else float(counter.faded_changes(window, window, HALF)[0])
            totals.add(one, one, variance, 100)
        stated = noise_variance(chosen, 12) * (1.0 if counter else 36.0 / noise_variance(config(None), 1))
        found = totals.weighted_sums()
        assert np.asarray(found.variance) == pytest.approx([stated])
        # 1,000 a window of 100 slots.
        assert found.ones[0, 0] == pytest.approx(remembered(chosen, 12).share * 12_000, abs=1)


def test_after_many_windows_the_model_is_worth_some_three_half_lives():
    assert remembered(config(50.0), 10_000).share * 10_000 == pytest.approx(2 / math.log(2) * 50.0, rel=0.01)


def test_a_short_memory_prefers_fresh_windows():
    """A counter's noise is as large after one window as after many, and what is forgotten need not be carried."""
    assert choose_release(1, 4_000, 4_096) == "counter"
    assert choose_release(1, 4_000, 4_096, fade=0.5 ** (1 / 10)) == "fresh"
    assert choose_release(1, 4_000, 4_096, fade=0.5 ** (1 / 2_000)) == "counter"


def test_slots_give_items_the_share_that_what_is_remembered_asks_for():
    plain, forgetful = (layout_of_slots(config(one)).budgets[0] for one in (None, 1.0))
    assert forgetful > plain


def test_a_half_life_is_in_the_digest():
    digests = {P2BSystem.declared(config(half_life)).digest for half_life in (None, 1.0, 2.0)}
    assert len(digests) == 3


def test_it_costs_nothing_and_says_so():
    plain, forgetful = config(None), config()
    assert release_guarantee(plain).lifetime.cost == release_guarantee(forgetful).lifetime.cost
    assert release_guarantee(plain).epsilon_micro == release_guarantee(forgetful).epsilon_micro
    kind = kind_of("p2b")
    facts = {fact.name: fact.text for fact in kind.facts(forgetful, Artefacts("here", {}))}
    assert "costs nothing and refunds nothing" in facts["half_life"]
    assert "half_life" not in {fact.name for fact in kind.facts(plain, Artefacts("here", {}))}


@pytest.mark.parametrize("half_life", [0.0, -1.0, math.nan, math.inf, 2e6])
def test_impossible_half_lives_are_refused(half_life):
    with pytest.raises(ConfigurationError, match=r"model\.half_life"):
        config(half_life)


def test_codes_have_no_half_life():
    with pytest.raises(ConfigurationError, match=r"model\.half_life: expected none for form codes"):
        P2BConfig(deployment="shop", arms=3, context=ContextConfig(4), expected_slots=40, half_life=2.0)
