"""The power that an audit states is the one that it has."""

from functools import cache
from statistics import NormalDist

import numpy as np
import pytest

from hushstream.privacy.audits import (
    Family,
    attack_power,
    balanced_rates,
    gamma_sizes,
    gaussian_curve,
    laplace_pair,
    lower_confidence,
    pure,
    reaching,
    setting_of,
    size_power,
    upper_confidence,
)

FALSE_ALARM = 1e-6
CLAIM = 1.0
TIMES = 200

LAPLACE = pure(lambda epsilon: laplace_pair(epsilon, 1, 4).power)


def found(family, rates, runs, generator):
    """How often, of `TIMES` audits, a release with these rates is found."""
    true_rate, false_rate = rates
    seen = 0
    for _ in range(TIMES):
        hits = (int(generator.binomial(runs, rate)) for rate in (true_rate, false_rate))
        seen += bound(family, *hits, runs) > CLAIM
    return seen


@cache
def bound(family, true_hits, false_hits, runs):
    """What the audit says of these hits, the same for equal ones."""
    few = lower_confidence(true_hits, runs, FALSE_ALARM / 2)
    return family.lower_bound(few, upper_confidence(false_hits, runs, FALSE_ALARM / 2))


@pytest.mark.parametrize("rates", [balanced_rates(LAPLACE), reaching(4)])
def test_an_excess_of_the_stated_size_is_found_as_often_as_stated(rates):
    """At chance .9 fewer than 160 of 200 are found once in 100,000; at 85 % of the excess some are missed."""
    least = attack_power(LAPLACE, CLAIM, 200, FALSE_ALARM, rates)
    assert least > CLAIM
    generator = np.random.default_rng(11)
    assert found(LAPLACE, rates(least), 200, generator) >= 160
    assert found(LAPLACE, rates(CLAIM + 0.7 * (least - CLAIM)), 200, generator) < 190


def test_more_runs_see_smaller_excesses_and_hardly_any_epsilon_is_not_seen_at_all():
    few, many = (attack_power(LAPLACE, CLAIM, runs, FALSE_ALARM) for runs in (500, 20_000))
    assert CLAIM < many < few
    flat = Family(lambda setting: lambda false_rate: false_rate, lambda setting: setting)
    assert attack_power(flat, CLAIM, 1_000_000, FALSE_ALARM) is None


def test_rates_are_those_where_the_curve_is_furthest_above_the_diagonal():
    distance = 1.5
    family = Family(lambda setting: gaussian_curve(distance), lambda setting: setting)
    true_rate, false_rate = balanced_rates(family)(1.0)
    assert false_rate == pytest.approx(NormalDist().cdf(-distance / 2), abs=1e-3)
    assert true_rate == pytest.approx(NormalDist().cdf(distance / 2), abs=1e-3)


def test_a_setting_is_the_one_that_is_sold_for_an_epsilon():
    family = Family(lambda setting: gaussian_curve(setting), lambda setting: setting**2)
    assert setting_of(family, 4.0) == pytest.approx(2.0)


def test_noise_that_lacks_the_stated_size_is_found_as_often_as_stated():
    """At chance .9 fewer than 28 of 40 are found once in 6,000."""
    draws = 5_000
    law = gamma_sizes(1, Family(lambda setting: lambda false_rate: false_rate, lambda setting: setting, CLAIM / 4))
    least = size_power(law, CLAIM, draws, FALSE_ALARM)
    assert CLAIM < least < 1.15
    generator = np.random.default_rng(12)
    means = generator.exponential(1 / least, (40, draws)).mean(axis=1)
    assert sum(law.lower_bound(float(mean), draws, FALSE_ALARM) > CLAIM for mean in means) >= 28
    honest = float(generator.exponential(1 / CLAIM, draws).mean())
    assert law.lower_bound(honest, draws, FALSE_ALARM) <= CLAIM
