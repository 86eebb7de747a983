"""The Gaussian sampler against its exact law. Streams are seeded: a test that passes once passes always; the
stated false-alarm rates are those of the choice of the seed, the powers are computed in the tests themselves."""

import hmac
import math
import struct
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hushstream.privacy.errors import BadNoise
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms import gaussian
from hushstream.privacy.mechanisms.gaussian import (
    discrete_gaussian,
    discrete_gaussian_joint,
    gaussian_tables,
    gaussian_truncation,
    gaussian_variance,
    gaussian_variance_for,
)
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, discrete_laplace

FALSE_ALARM = 1e-6
VARIANCES = [(1, 10), (1, 1), (30, 7), (10**4, 1), (10**8, 3)]


def _probabilities(edges, numerator, denominator):
    """Exact probabilities of the cells (-inf, e0), [e0, e1), ..., [en, inf), by summing the law."""
    variance = numerator / denominator
    values = np.arange(-math.ceil(13 * math.sqrt(variance)) - 2, math.ceil(13 * math.sqrt(variance)) + 3)
    mass = np.exp(-(values.astype(float) ** 2) / (2 * variance))
    return np.bincount(np.searchsorted(edges, values, side="right"), mass, len(edges) + 1) / mass.sum()


def _edges(numerator, denominator):
    sigma = math.sqrt(numerator / denominator)
    return np.unique(np.round(sigma * np.linspace(-4, 4, 41)).astype(np.int64))


@pytest.mark.parametrize(("numerator", "denominator"), VARIANCES)
def test_draws_follow_the_exact_law(stream, numerator, denominator):
    """Chi-square against the exact law, false alarm 1e-6; a variance off by 10 % is caught with power > 0.999."""
    size = 200_000
    drawn = discrete_gaussian(stream(), numerator, denominator, size)
    edges = _edges(numerator, denominator)
    expected = _probabilities(edges, numerator, denominator)
    keep = expected * size >= 5
    observed = np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=len(edges) + 1)
    chi2 = float((((observed - size * expected) ** 2) / (size * expected))[keep].sum())
    critical = stats.chi2.isf(FALSE_ALARM, keep.sum() - 1)
    assert chi2 < critical
    wrong = _probabilities(edges, 9 * numerator, 10 * denominator)
    shift = size * float(((wrong - expected) ** 2 / expected)[keep].sum())
    assert stats.ncx2.sf(critical, keep.sum() - 1, shift) > 0.999


@pytest.mark.parametrize(
    ("numerator", "denominator", "expected"),
    [
        (1, 1, "2 0 0 1 0"),
        (1, 10, "0 0 0 0 0"),
        (2500, 3, "1 21 -6 10 -29"),
        (
            10**25,
            7,
            "63746074894 -469022028422 207456695854 325511250069 -557930676860",
        ),
        (
            1 << 92,
            1,
            "-34424134031539 -155267798860770 83460137050741 11970309435885 4057926460492",
        ),
    ],
)
def test_known_answers_stay_the_same_on_every_machine_and_version(stream, numerator, denominator, expected):
    drawn = discrete_gaussian(stream(), numerator, denominator, 5)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [int(value) for value in expected.split()]


def _plain_reading(key, address, numerator, denominator, size):
    """The docstring read again with whole numbers and mpmath alone: no float decides, no numpy is used."""

    def part(tag, payload):
        return tag + struct.pack("<Q", len(payload)) + payload

    def whole(value):
        return part(b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))

    message = part(b"s", b"noise") + part(b"b", address.encode()) + whole(0) + part(b"s", b"discrete-gaussian")
    material = hmac.new(key._material, message + whole(numerator) + whole(denominator), "sha256").digest()
    seed = Cipher(ChaCha20(material, bytes(16)), mode=None).encryptor().update(bytes(32))
    tables = gaussian_tables(numerator, denominator)
    result = []
    with mpmath.workprec(400):
        for place in range(size):
            for attempt in range(1000):
                nonce = bytes(8) + struct.pack("<Q", attempt)
                block = Cipher(ChaCha20(seed, nonce), mode=None).encryptor().update(bytes(24 * (place + 1)))
                first, second, third = struct.unpack("<3Q", block[-24:])
                bucket, below = 0, tables.weights[0]
                while first >= below:
                    bucket += 1
                    below += tables.weights[bucket]
                magnitude = (bucket << tables.offset_bits) + second % (1 << tables.offset_bits)
                exponent = mpmath.mpf(magnitude**2 * denominator) / (2 * numerator)
                factor = mpmath.mpf(tables.factor.numerator) / tables.factor.denominator
                chance = factor * mpmath.exp(-exponent) / tables.weights[bucket]
                negative = second >> 63
                if mpmath.mpf(third) / 2**64 < chance and not (negative and magnitude == 0):
                    result.append(-magnitude if negative else magnitude)
                    break
    return result


@pytest.mark.parametrize(("numerator", "denominator"), [(1, 10), (1, 1), (10**8, 3), (10**25, 7)])
def test_draws_agree_with_a_plain_reading_of_the_method(key, address, numerator, denominator):
    drawn = discrete_gaussian(KeyedStream(key, address), numerator, denominator, 60)
    assert drawn.tolist() == _plain_reading(key, address, numerator, denominator, 60)


@pytest.mark.parametrize(("numerator", "denominator"), [(1, 1), (2500, 3), (10**25, 7)])
def test_floats_decide_nothing_that_exact_arithmetic_would_decide_otherwise(
    stream, monkeypatch, numerator, denominator
):
    by_float = discrete_gaussian(stream(), numerator, denominator, 400)
    monkeypatch.setattr(gaussian, "_MARGIN", 2.0)
    assert discrete_gaussian(stream(), numerator, denominator, 400).tolist() == by_float.tolist()


@pytest.mark.parametrize(("numerator", "denominator"), [*VARIANCES, (10**25, 7), (1 << 92, 1)])
def test_the_float_estimate_is_within_the_stated_distance_of_the_exact_acceptance(numerator, denominator):
    tables = gaussian_tables(numerator, denominator)
    buckets = np.linspace(0, len(tables.weights) - 1, 40).astype(np.int64)
    offsets = np.unique(np.linspace(0, (1 << tables.offset_bits) - 1, 7).astype(np.int64))
    bucket, offset = (grid.ravel() for grid in np.meshgrid(buckets, offsets))
    estimate = gaussian._acceptance(tables, bucket, offset)
    for b, o, approximate in zip(bucket.tolist(), offset.tolist(), estimate.tolist(), strict=True):
        exact = Fraction(gaussian._exact_acceptance(tables, b, (b << tables.offset_bits) + o), 1 << 256)
        assert abs(Fraction(approximate) - exact) < Fraction(1, 1 << 48)
        assert exact <= 1


@pytest.mark.parametrize(("numerator", "denominator"), [*VARIANCES, (10**25, 7), (1 << 92, 1)])
def test_proposals_are_whole_numbers_that_sum_to_all_words_and_never_fall_short(numerator, denominator):
    tables = gaussian_tables(numerator, denominator)
    assert sum(tables.weights) == 1 << 64
    assert min(tables.weights) >= 1
    with mpmath.workprec(400):
        width = 1 << tables.offset_bits
        for bucket, weight in enumerate(tables.weights):
            exponent = mpmath.mpf((width * bucket) ** 2 * denominator) / (2 * numerator)
            assert mpmath.mpf(tables.factor.numerator) / tables.factor.denominator * mpmath.exp(-exponent) <= weight
    assert (len(tables.weights) * width) ** 2 * denominator >= gaussian.REACH**2 * numerator


@pytest.mark.parametrize(("numerator", "denominator"), VARIANCES)
def test_the_truncation_bounds_the_mass_beyond_the_reach(numerator, denominator):
    tables = gaussian_tables(numerator, denominator)
    reach = len(tables.weights) << tables.offset_bits
    with mpmath.workprec(400):
        variance = mpmath.mpf(numerator) / denominator
        step = max(1, int(mpmath.sqrt(variance)) // 50)
        # An upper sum over steps for the tail, a lower one (the integral) for the normaliser.
        beyond = sum(step * mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * variance)) for x in range(reach, 3 * reach, step))
        mass = 2 * beyond / max(mpmath.mpf(1), mpmath.sqrt(2 * mpmath.pi * variance))
        stated = gaussian_truncation(numerator, denominator)
        assert mass / 2 <= mpmath.mpf(stated.numerator) / stated.denominator
    assert stated < Fraction(1, 1 << 100)


def test_zero_is_not_counted_twice(stream):
    """P(0) = 0.3989 at sigma 1; with minus zero kept it would be 0.5700. 6 sigma: false alarm under 1e-8."""
    share = float(np.mean(discrete_gaussian(stream(), 1, 1, 100_000) == 0))
    expected = float(_probabilities(np.array([0, 1]), 1, 1)[1])
    assert abs(share - expected) < 6 * math.sqrt(expected * (1 - expected) / 100_000)


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_short_draw_is_the_beginning_of_a_longer_one(short, more):
    key = seeded_key(7, "shuffler")
    address = NoiseAddress("p", "d", bytes(32), "s", "m", {}, b"c", 0)
    whole = discrete_gaussian(KeyedStream(key, address), 300, 7, short + more)
    part = discrete_gaussian(KeyedStream(key, address), 300, 7, short)
    assert whole[:short].tolist() == part.tolist()


def test_what_is_drawn_next_does_not_depend_on_how_many_attempts_there_were(stream):
    first, second = stream(), stream()
    discrete_gaussian(first, 1, 1, 1)
    discrete_gaussian(second, 1, 1, 5_000)
    assert discrete_laplace(first, 1000, 1, 20).tolist() == discrete_laplace(second, 1000, 1, 20).tolist()


def test_many_streams_in_one_pass_give_what_each_gives_alone(key, address):
    def streams():
        return [KeyedStream(key, replace(address, node=(level,))) for level in range(5)]

    joint = discrete_gaussian_joint(streams(), 2, 1, 300)
    assert joint.shape == (5, 300)
    for row, stream in zip(joint, streams(), strict=True):
        assert row.tolist() == discrete_gaussian(stream, 2, 1, 300).tolist()
    assert len({row.tobytes() for row in joint}) == 5


def test_one_address_never_gives_two_variances_the_same_noise(stream):
    wide = discrete_gaussian(stream(), 4_000_000, 1, 1000)
    narrow = discrete_gaussian(stream(), 1_000_000, 1, 1000)
    # Same words would give a correlation near 1; independent ones exceed 0.2 with probability under 1e-9.
    assert abs(np.corrcoef(wide, narrow)[0, 1]) < 0.2


@pytest.mark.parametrize("variance", [(0, 1), (1, 0), (-1, 1), (1.5, 1), (True, 1), ((1 << 92) + 1, 1)])
def test_an_impossible_variance_is_refused(stream, variance):
    with pytest.raises(BadNoise, match="variance"):
        discrete_gaussian(stream(), *variance, 1)


@pytest.mark.parametrize("size", [-1, 1 << 40])
def test_an_impossible_size_is_refused(stream, size):
    with pytest.raises(BadNoise, match="size"):
        discrete_gaussian(stream(), 1, 1, size)
    assert discrete_gaussian(stream(), 1, 1, 0).shape == (0,)


def test_the_variance_of_a_rho_is_never_smaller_than_its_rounded_up_rho_asks():
    assert Fraction(*gaussian_variance_for("0.5", 1)) == 1
    assert Fraction(*gaussian_variance_for("0.1234565", 9)) == Fraction(9_000_000, 2 * 123_457)
    for rho, squared in ((0, 1), (1, 0)):
        with pytest.raises(BadNoise, match="rho above 0 and squared sensitivity"):
            gaussian_variance_for(rho, squared)


@pytest.mark.parametrize(("numerator", "denominator"), [(1, 10), (1, 1), (19, 2), (10, 1), (11, 1)])
def test_the_variance_is_that_of_the_law(numerator, denominator):
    values = np.arange(-60, 61).astype(float)
    mass = np.exp(-(values**2) * denominator / (2 * numerator))
    assert gaussian_variance(numerator, denominator) == pytest.approx(
        float((values**2 * mass).sum() / mass.sum()), rel=1e-12
    )


def test_the_price_of_a_shift_is_the_stated_one():
    """Renyi divergence of the law and its shift by 3, summed exactly, against alpha rho (Theorem 4)."""
    variance = Fraction(20)
    rho = Fraction(9) / (2 * variance)
    with mpmath.workprec(200):
        law = {x: mpmath.exp(-mpmath.mpf(x * x) / 40) for x in range(-120, 121)}
        total = sum(law.values())
        for order in (2, 3, 8):
            moment = sum(p**order * law[x - 3] ** (1 - order) for x, p in law.items() if x - 3 in law) / total
            divergence = mpmath.log(moment) / (order - 1)
            assert divergence <= order * mpmath.mpf(rho.numerator) / rho.denominator * (1 + mpmath.mpf(10) ** -12)
            assert divergence > 0.999 * order * float(rho)
