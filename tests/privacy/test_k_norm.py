"""K-norm noise against its exact law. Streams are seeded: a test that passes once passes always; the stated
false-alarm rates are those of the choice of the seed."""

import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from hushstream.privacy.errors import BadNoise
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms import k_norm
from hushstream.privacy.mechanisms.gaussian import gaussian_reach, gaussian_truncation
from hushstream.privacy.mechanisms.k_norm import (
    discrete_k_norm_joint,
    k_norm_reach,
    k_norm_tables,
    k_norm_truncation,
    k_norm_variance,
)
from hushstream.privacy.mechanisms.noise import KeyedStream, discrete_laplace

FALSE_ALARM = 1e-6


def discrete_k_norm(stream, numerator, denominator, dimension):
    """One vector."""
    return discrete_k_norm_joint((stream,), numerator, denominator, dimension)[0]


def _streams(key, address, count):
    return [KeyedStream(key, replace(address, node=(node,))) for node in range(count)]


def _mixture(tables, squared, dimension):
    """Probability of one vector of this squared length, from the tables alone."""
    ends = (0, *tables.thresholds, 1 << 128)
    total = mpmath.mpf(0)
    for share, exact in zip(np.diff(np.array(ends, dtype=object)), tables.variances, strict=True):
        variance = mpmath.mpf(exact.numerator) / exact.denominator
        theta = mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * variance)))
        total += mpmath.mpf(share) / 2**128 * mpmath.exp(-squared / (2 * variance)) / theta**dimension
    return total


@pytest.mark.parametrize(("scale", "dimension"), [((7, 2), 1), ((3, 1), 2), ((4, 1), 5)])
def test_the_mixture_is_the_k_norm_law_to_within_its_truncation(scale, dimension):
    """Ratios of probabilities at lattice points against e^(-length/s): the normaliser cancels."""
    tables = k_norm_tables(*scale, dimension)
    with mpmath.workprec(300):
        rate = mpmath.mpf(scale[1]) / scale[0]
        base = _mixture(tables, 1, dimension) * mpmath.exp(rate)
        for squared in (4, 9, 25, 64):
            expected = base * mpmath.exp(-rate * mpmath.sqrt(squared))
            assert abs(_mixture(tables, squared, dimension) - expected) < float(tables.truncation) * base


def test_the_price_of_a_shift_is_the_stated_one():
    """Every ratio of two probabilities a shift of length 5 apart is at most e^(5/s), and one reaches nearly that."""
    tables = k_norm_tables(3, 1, 2)
    with mpmath.workprec(200):
        law = {}
        for x in range(-9, 10):
            for y in range(-9, 10):
                length = x * x + y * y
                if length not in law:
                    law[length] = _mixture(tables, length, 2)
        ratios = [law[x * x + y * y] / law[(x - 3) ** 2 + (y - 4) ** 2] for x in range(-6, 10) for y in range(-5, 10)]
        limit = mpmath.exp(mpmath.mpf(5) / 3)
        assert max(ratios) <= limit * (1 + mpmath.mpf(2) ** -60)
        assert max(ratios) > limit * (1 - mpmath.mpf(2) ** -60)


@pytest.mark.parametrize(("scale", "dimension"), [((1, 4), 3), ((1, 1), 25), ((2**35, 3), 25), ((2**33, 1), 250)])
def test_the_truncation_is_negligible_and_covers_the_gaussians_own(scale, dimension):
    tables = k_norm_tables(*scale, dimension)
    assert dimension * k_norm.GAUSSIAN_TRUNCATION <= k_norm_truncation(*scale, dimension) < Fraction(1, 1 << 80)
    assert list(tables.thresholds) == sorted(set(tables.thresholds))
    assert tables.thresholds[0] > 0
    assert tables.thresholds[-1] < 1 << 128
    for variance in tables.variances[:: max(1, len(tables.variances) // 4)]:
        assert gaussian_truncation(variance.numerator, variance.denominator) <= k_norm.GAUSSIAN_TRUNCATION


@pytest.mark.parametrize("dimension", [2, 25])
def test_lengths_follow_the_exact_law(key, address, dimension):
    """At s = 2^33 lattice and space agree: length/s is Gamma(d). Kolmogorov, false alarm 1e-6.

    A scale of 0.9 moves the law by more than the critical distance: it is caught with power above 0.999, since
    the empirical distance is within 0.035 of the true one at 3,000 vectors but for 1e-3 (Massart's bound).
    """
    count = 3_000
    drawn = discrete_k_norm_joint(_streams(key, address, count), 1 << 33, 1, dimension)
    lengths = np.linalg.norm(drawn / 2**33, axis=1)
    found = stats.kstest(lengths, stats.gamma(dimension).cdf)
    assert found.pvalue > FALSE_ALARM
    grid = np.linspace(0, 4 * dimension, 4_000)
    distance = np.abs(stats.gamma(dimension, scale=0.9).cdf(grid) - stats.gamma(dimension).cdf(grid)).max()
    reach = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * count))
    assert dimension < 25 or distance > reach + 0.035
    cosines = drawn[:, 0] / 2**33 / lengths
    direction = stats.beta((dimension - 1) / 2, (dimension - 1) / 2, loc=-1, scale=2)
    assert stats.kstest(cosines, direction.cdf).pvalue > FALSE_ALARM


def test_small_vectors_follow_the_exact_law_point_by_point(key, address):
    """Chi-square over the points of the plane at s = 3/2, false alarm 1e-6; a wrong scale is refused by it."""
    drawn = discrete_k_norm_joint(_streams(key, address, 4_000), 3, 2, 2)
    reach = np.arange(-40, 41)
    lengths = np.hypot(*np.meshgrid(reach, reach))
    near = np.abs(drawn).max(axis=1) <= 3
    cells = np.bincount((drawn[near, 0] + 3) * 7 + drawn[near, 1] + 3, minlength=49).reshape(7, 7)

    def p_value(scale):
        law = np.exp(-lengths / scale)
        law = law[37:44, 37:44] / law.sum()
        expected = 4_000 * np.append(law.ravel(), 1 - law.sum())
        observed = np.append(cells.ravel(), 4_000 - cells.sum())
        keep = expected >= 5
        return stats.chi2.sf(((observed - expected) ** 2 / expected)[keep].sum(), keep.sum() - 1)

    assert p_value(1.5) > FALSE_ALARM
    assert p_value(0.75) < FALSE_ALARM


@pytest.mark.parametrize(("scale", "dimension"), [((2, 1), 1), ((5, 2), 2), ((2**34, 1), 25)])
def test_the_variance_is_that_of_the_law(scale, dimension):
    value = scale[0] / scale[1]
    if value > 100:
        expected = value**2 * (dimension + 1)
    else:
        reach = np.arange(-120, 121).astype(float)
        grid = np.meshgrid(*[reach] * dimension)
        law = np.exp(-np.sqrt(sum(axis**2 for axis in grid)) / value)
        expected = (law * grid[0] ** 2).sum() / law.sum()
    assert k_norm_variance(*scale, dimension) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dimension", [1, 3, 25])
def test_on_a_fine_lattice_the_variance_is_the_closed_form(dimension):
    """On either side of where the mixture is no longer asked."""
    for scale in (1 << 20, (1 << 20) - 1):
        assert k_norm_variance(scale, 1, dimension) == pytest.approx(scale**2 * (dimension + 1), rel=1e-12)


@pytest.mark.parametrize(("scale", "dimension"), [((7, 2), 1), ((50, 1), 3), ((900, 1), 40)])
def test_no_coordinate_can_be_larger_than_the_reach(scale, dimension):
    variances = k_norm_tables(*scale, dimension).variances
    reaches = [gaussian_reach(variance.numerator, variance.denominator) for variance in variances]
    assert k_norm_reach(*scale, dimension) == max(reaches)


def test_known_answers_stay_the_same_on_every_machine_and_version(stream):
    assert discrete_k_norm(stream(), 3, 1, 4).tolist() == [3, 0, 2, 1]
    assert discrete_k_norm(stream(), 1 << 33, 7, 3).tolist() == [-2913802404, -2877450495, 1458836890]


def test_many_streams_in_one_pass_give_what_each_gives_alone(key, address):
    joint = discrete_k_norm_joint(_streams(key, address, 20), 50, 1, 3)
    assert joint.shape == (20, 3)
    for row, stream in zip(joint, _streams(key, address, 20), strict=True):
        assert row.tolist() == discrete_k_norm(stream, 50, 1, 3).tolist()
    assert len({row.tobytes() for row in joint}) == 20
    assert discrete_k_norm_joint([], 50, 1, 3).shape == (0, 3)


def test_what_is_drawn_next_does_not_depend_on_the_node_that_was_chosen(key, address):
    """Equal addresses under two dimensions choose different nodes, and both leave the stream at the same place."""
    first, second = KeyedStream(key, address), KeyedStream(key, address)
    discrete_k_norm(first, 50, 1, 3)
    discrete_k_norm(second, 50, 1, 40)
    assert discrete_laplace(first, 1000, 1, 20).tolist() == discrete_laplace(second, 1000, 1, 20).tolist()


def test_another_key_or_scale_gives_unrelated_noise(key, address, stream):
    base = discrete_k_norm(stream(), 1000, 1, 50)
    for other in (
        discrete_k_norm(KeyedStream(seeded_key(8, "counter"), address), 1000, 1, 50),
        discrete_k_norm(stream(), 2000, 1, 50),
    ):
        # Same words would give a correlation near 1; independent ones exceed 0.85 with probability under 1e-9.
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.85


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, 1, 2), "scale numerator"),
        ((1, 0, 2), "scale denominator"),
        ((1.5, 1, 2), "scale numerator"),
        ((1, 1, 0), "dimension"),
        ((1, 1, 4_097), "dimension"),
        ((1, 1, True), "dimension"),
        ((1, 5, 2), "at least 1/4"),
        ((1 << 46, 1, 2), "expected below"),
    ],
)
def test_an_impossible_scale_or_dimension_is_refused(stream, arguments, said):
    with pytest.raises(BadNoise, match=said):
        discrete_k_norm(stream(), *arguments)
