"""Each bar of the picture, computed from the mechanism by itself, over random configurations of every system.

What even odds become follows from the laws of what is released under two contents. Here those laws are written anew:
discrete Laplace noise by its mass function, Gaussian noise by the closed form of its divergence (Balle, Wang 2018,
theorem 8), crowds by their binomials. Of a guarantee only the bars are read, and of the product's code only the noise
that it draws (scale, nodes, rho).
"""

import itertools
import math
import random

import numpy as np
import pytest
from scipy import stats

from hushstream.agents.worker.deployment import parse_config
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.privacy.amounts import delta_value
from hushstream.privacy.promises.sentence import slack
from hushstream.systems.catalogue import kind_of
from hushstream.systems.colin.configuration import plan_of as reward_plan
from hushstream.systems.p2b.guarantee import window_tree_of
from hushstream.systems.p2b.lift import lift_tree, required_lift
from hushstream.systems.pdap.algorithm.blocks import block_scales

PER_SYSTEM = 12
ROUNDING = 2e-5
"""Of an epsilon: amounts are whole millionths, rounded up, and up to a hundred units of one add up."""


def promised(values):
    config = parse_config(values)
    return config, kind_of(config.system).guarantee(config, Artefacts("nowhere", {}))


def epsilons(promises):
    """What the bars say, as odds on a logarithmic scale less `slack`; the first one is even. Two stand for both where
    equal."""
    shares = [one.share for one in promises.odds()]
    assert shares[0] == 0.5
    costs = (cost for pair in (promises.together, promises.unit_prices) for cost in (pair.which, pair.zero_out) if cost)
    return [math.log(share / (1 - share)) - slack(cost) for share, cost in zip(shares[1:], costs, strict=False)]


def log_ratio(scale, moved):
    """Largest log-ratio of the laws of independent sums with noise of mass ~ exp(-|x| / scale), moved by ``moved``.

    From the mass function at places on both sides of both centres, beyond which the ratio does not change any more.
    """
    found = 0.0
    for step in moved:
        places = np.linspace(-2 * abs(step) - 2, 2 * abs(step) + 2, 401).round()
        found += float(np.max(np.abs(places - step) - np.abs(places))) / scale
    return found


def gaussian_delta(epsilon, distance):
    """The least delta at an epsilon for two normal laws whose means are so many deviations apart."""
    first = stats.norm.cdf(distance / 2 - epsilon / distance)
    return first - math.exp(epsilon) * stats.norm.cdf(-distance / 2 - epsilon / distance)


def laplace_scale_of(plan):
    return plan.noise.numerator / plan.noise.denominator


@pytest.mark.parametrize("seed", range(PER_SYSTEM))
def test_p2b_slots_and_lift(seed):
    rng = random.Random(seed)
    levels, slots = rng.choice([1, 2, 5, 16]), rng.randint(1, 4)
    epsilon, kept = rng.choice([0.1, 0.5, 0.8]), rng.choice([1.0, 1.0, 0.3])
    lift = {"own": 0.1, "epsilon": 0.25, "decisions_per_user": rng.randint(1, 9)} if rng.random() < 0.5 else {}
    release = {"sampling": kept, "sums": rng.choice(["fresh", "counter"])}
    config, promises = promised(
        {
            "deployment": "bars",
            "items": {"capacity": 3},
            "features": {"dimension": 3},
            "expected_slots": 20000,
            "encoder": {"codes": 4},
            "measurement": lift,
            "release": release,
            "feedback": {"reward_levels": levels},
            "privacy": {"epsilon": epsilon, "units_per_person": slots},
        }
    )
    tree = window_tree_of(config)
    high = 1 if tree is None else tree.levels
    reward = rng.randint(0, levels)
    # One cell of a report, its ones and its zeros, in each node that holds its window; and another one's cell.
    one, other = [reward, levels - reward] * high, [levels, 0] * high
    noised = (
        config.release.slot_epsilon if kept == 1.0 else math.log(1 + math.expm1(config.release.slot_epsilon) / kept)
    )
    scale = levels * high / (noised if kept < 1.0 else epsilon)
    apart, swapped = log_ratio(scale, one), log_ratio(scale, [*one, *other])
    if kept < 1:
        apart = math.log(1 - kept + kept * math.exp(apart))
        swapped = apart - math.log(1 - kept + kept * math.exp(-log_ratio(scale, other)))
    beside = [0.0, 0.0]
    if lift:
        counter = lift_tree(*required_lift(config))
        shown = [reward, levels - reward] * config.measurement.decisions_per_user * counter.levels
        beside = [log_ratio(laplace_scale_of(counter), shown * times) for times in (2, 1)]
    which, zero_out, *unit = epsilons(promises)
    unit = unit or [which, zero_out]
    least = [slots * swapped + beside[0], slots * apart + beside[1], swapped, apart]
    for bar, true in zip([which, zero_out, *unit], least, strict=True):
        assert bar >= true - 1e-9
        if kept == 1:
            assert bar <= true + ROUNDING


@pytest.mark.parametrize("seed", range(PER_SYSTEM))
def test_colin_rewards(seed):
    rng = random.Random(seed)
    rewards, law = rng.randint(1, 9), rng.choice(["laplace", "gaussian"])
    privacy = {"epsilon": rng.choice([0.1, 0.5, 0.9]), "units_per_person": rewards}
    config, promises = promised(
        {
            "system": "colin",
            "deployment": "bars",
            "items": {"capacity": 3},
            "features": {"dimension": 3},
            "privacy": privacy,
            "release": {"mechanism": "negative-digit", "noise": law},
        }
    )
    plan = reward_plan(config.release, config.features)
    found = epsilons(promises)
    assert len(found) == (1 if rewards == 1 else 2), "that a reward was given is public: one question is left"
    prices = [promises.together.which, promises.unit_prices.which]
    for bar, price, count in zip([found[0], found[-1]], prices, [rewards, 1], strict=True):
        if law == "laplace":
            # From 0 to 1 a reward moves the node of its leaf at each level by all of the features' length.
            true = log_ratio(laplace_scale_of(plan), [plan.sensitivity] * plan.levels * count)
            assert true - 1e-9 <= bar <= true + ROUNDING
        else:
            distance = count * math.sqrt(plan.levels) * plan.sensitivity / math.sqrt(laplace_scale_of(plan))
            assert gaussian_delta(bar, distance) <= float(delta_value(price.delta_units))
            assert gaussian_delta(0.7 * bar, distance) > float(delta_value(price.delta_units))


@pytest.mark.parametrize("seed", range(PER_SYSTEM))
def test_pdap_blocks(seed):
    rng = random.Random(seed)
    events, levels = rng.randint(1, 9), rng.choice([1, 3, 10])
    privacy = {"epsilon": rng.choice([0.1, 0.3, 0.7]), "units_per_person": events}
    config, promises = promised(
        {
            "system": "pdap",
            "deployment": "bars",
            "vendors": [{"name": "north", "items": {"capacity": 5}}],
            "features": {"dimension": 2},
            "privacy": privacy,
            "feedback": {"reward_levels": levels},
            "release": {"level_growth": rng.choice([0.0, 0.1])},
        }
    )
    least_noise = min(top / bottom for top, bottom in block_scales(config))
    found = epsilons(promises)
    for bar, count in zip([found[0], found[-1]], [events, 1], strict=True):
        true = log_ratio(least_noise, [levels] * count)
        assert true - 1e-9 <= bar <= true + ROUNDING


@pytest.mark.parametrize("seed", range(PER_SYSTEM))
def test_pdol_records(seed):
    rng = random.Random(seed)
    records = rng.randint(1, 2)
    # Two contents are twice as far apart in sums of gradients, and sqrt 2.15 times in sums of moments.
    dimension, apart = rng.choice([(20, math.sqrt(2.15)), (130, 2.0)])
    _, promises = promised(
        {
            "system": "pdol",
            "deployment": "bars",
            "nodes": 4,
            "features": {"dimension": dimension},
            "privacy": {"units_per_person": records, "epsilon": rng.choice([0.5, 1.0])},
        }
    )
    distance = math.sqrt(2 * promises.rho_micro / 1e6)
    which, zero_out, *unit = epsilons(promises)
    unit = unit or [which, zero_out]
    life, one = promises.together, promises.unit_prices
    questions = zip(
        [which, zero_out, *unit],
        [life.which, life.zero_out, one.which, one.zero_out],
        [apart * records, records, apart, 1],
        strict=True,
    )
    for bar, price, times in questions:
        assert gaussian_delta(bar, times * distance) <= float(delta_value(price.delta_units))
        assert gaussian_delta(0.7 * bar, times * distance) > float(delta_value(price.delta_units))


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_bgt_slots(epsilon):
    _, promises = promised(
        {
            "system": "bgt",
            "deployment": "bars",
            "items": {"capacity": 50},
            "privacy": {"epsilon": epsilon},
            "release": {"pairs": 16},
        }
    )
    distance = math.sqrt(2 * promises.rho_micro / 1e6)
    life = promises.together
    for bar, price, times in zip(epsilons(promises), [life.which, life.zero_out], [2, 1], strict=True):
        assert gaussian_delta(bar, times * distance) <= float(delta_value(price.delta_units))
        assert gaussian_delta(0.7 * bar, times * distance) > float(delta_value(price.delta_units))


@pytest.mark.parametrize("slots", [1, 2])
def test_p2b_crowds(slots):
    """A report is in one crowd, another report in another one: both crowds differ, by all slots of the user."""
    threshold, kept = 8, 0.5
    _, promises = promised(
        {
            "deployment": "bars",
            "items": {"capacity": 3},
            "features": {"dimension": 3},
            "expected_slots": 20000,
            "encoder": {"codes": 4},
            "privacy": {"units_per_person": slots},
            "release": {"mechanism": "tuples", "sampling": kept, "threshold": threshold},
        }
    )
    which, zero_out, *_ = epsilons(promises)
    life = promises.together
    worst_one = worst_both = 0.0
    for others in range(threshold - slots, 3 * threshold):
        without, with_them = (_crowd(others + more, threshold, kept) for more in (0, slots))
        size = max(len(without), len(with_them))
        without, with_them = (np.pad(law, (0, size - len(law))) for law in (without, with_them))
        for first, second in itertools.permutations((without, with_them)):
            worst_one = max(worst_one, _hockey_stick(first, second, zero_out))
            both = np.outer(first, second).ravel(), np.outer(second, first).ravel()
            worst_both = max(worst_both, _hockey_stick(*both, which))
    assert worst_one <= float(delta_value(life.zero_out.delta_units)) * (1 + 1e-9)
    assert worst_one >= 0.99 * float(delta_value(life.zero_out.delta_units))
    assert worst_both <= float(delta_value(life.which.delta_units)) * (1 + 1e-9)


def _crowd(reports, threshold, kept):
    """The law of an emitted count: below the threshold nothing is emitted."""
    law = stats.binom.pmf(np.arange(reports + 1), reports, kept)
    hidden = law[:threshold].sum()
    law[:threshold] = 0
    law[0] = hidden
    return law


def _hockey_stick(first, second, epsilon):
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())
