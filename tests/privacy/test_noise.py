"""Noise: addresses, discrete Laplace and the table that it is looked up in."""

import bisect
import decimal
import hmac
import itertools
import pickle
import struct
from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hushstream.privacy.errors import BadNoise, PrivacyError
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    NoiseAddress,
    checked_add,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
    truncation,
)
from hushstream.privacy.mechanisms.tables import ThresholdLookup, laplace_tables

FALSE_ALARM = 1e-6
SCALES = [(1, 1), (3, 10), (7, 3), (256, 1), (5000, 1)]

names = st.text("ab0", min_size=1, max_size=3)
addresses = st.builds(
    NoiseAddress,
    purpose=names,
    deployment=names,
    genesis_nonce=st.sampled_from([bytes(32), bytes(range(32))]),
    system=names,
    mechanism=names,
    parameters=st.dictionaries(names, st.one_of(st.integers(0, 3), names, st.binary(max_size=2)), max_size=3),
    config_digest=st.binary(min_size=1, max_size=3),
    epoch=st.integers(0, 3),
    window=st.one_of(st.none(), st.integers(-1, 3)),
    node=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    cell=st.one_of(st.none(), st.integers(0, 3)),
    coordinate=st.one_of(st.none(), st.integers(0, 3)),
    partition=st.integers(0, 3),
)


def _pmf(value, numerator, denominator):
    """The exact law, for int64 arrays, in floats."""
    ratio = np.exp(-denominator / numerator)
    return (1 - ratio) / (1 + ratio) * ratio ** np.abs(value)


@given(addresses, addresses)
def test_two_different_addresses_never_encode_alike(first, second):
    assert (first.encode() == second.encode()) == (first == second)


def test_every_part_of_an_address_changes_the_noise(key, address):
    other = {
        "genesis_nonce": bytes(32),
        "parameters": {"epsilon_micro": 500_000, "levels": 1},
        "config_digest": b"another",
        "epoch": 1,
        "window": 4,
        "node": (0,),
        "cell": 0,
        "coordinate": 0,
        "partition": 1,
    }
    draws = {discrete_laplace(KeyedStream(key, address), 1000, 1, 8).tobytes()}
    for field in fields(NoiseAddress):
        changed = replace(address, **{field.name: other.get(field.name, "another")})
        draws.add(discrete_laplace(KeyedStream(key, changed), 1000, 1, 8).tobytes())
    draws.add(discrete_laplace(KeyedStream(seeded_key(8, "shuffler"), address), 1000, 1, 8).tobytes())
    assert len(draws) == len(fields(NoiseAddress)) + 2


def test_an_address_cannot_be_changed_through_the_mapping_it_was_made_from(key, address):
    parameters = dict(address.parameters)
    mine = replace(address, parameters=parameters)
    parameters["levels"] = 2
    assert mine.encode() == address.encode()
    with pytest.raises(TypeError):
        mine.parameters["levels"] = 2


@pytest.mark.parametrize("wrong", [{"purpose": ""}, {"config_digest": b""}, {"genesis_nonce": b"short"}])
def test_an_address_that_names_no_release_is_refused(address, wrong):
    with pytest.raises(BadNoise, match="noise address: expected"):
        replace(address, **wrong)


def test_one_address_never_gives_two_scales_the_same_noise(stream):
    wide = discrete_laplace(stream(), 2000, 1, 1000)
    narrow = discrete_laplace(stream(), 1000, 1, 1000)
    # Same words would give a correlation near 1; independent ones exceed 0.2 with probability under 1e-9.
    assert abs(np.corrcoef(wide, narrow)[0, 1]) < 0.2


def test_a_release_is_repeated_byte_for_byte_and_later_draws_are_new(stream):
    first, again = stream(), stream()
    draws = [discrete_laplace(first, 50, 1, 100).tobytes() for _ in range(3)]
    assert draws == [discrete_laplace(again, 50, 1, 100).tobytes() for _ in range(3)]
    assert len(set(draws)) == 3


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_short_draw_is_the_beginning_of_a_longer_one(short, more):
    key = seeded_key(7, "shuffler")
    address = NoiseAddress("p", "d", bytes(32), "s", "m", {}, b"c", 0)
    whole = discrete_laplace(KeyedStream(key, address), 300, 7, short + more)
    part = discrete_laplace(KeyedStream(key, address), 300, 7, short)
    assert whole[:short].tolist() == part.tolist()


def test_the_words_are_chacha20_under_hmac_of_the_encoded_address(key, address):
    def part(tag, payload):
        return tag + struct.pack("<Q", len(payload)) + payload

    message = part(b"s", b"noise") + part(b"b", address.encode()) + part(b"i", b"\x00") + part(b"s", b"law")
    material = hmac.new(key._material, message, "sha256").digest()
    block = Cipher(ChaCha20(material, bytes(16)), mode=None).encryptor().update(bytes(800))
    assert KeyedStream(key, address).words(100, "law").tolist() == list(struct.unpack("<100Q", block))


@pytest.mark.parametrize(
    ("numerator", "denominator", "expected"),
    [
        (1, 1, "0 2 0 5 1"),
        (3, 10, "0 0 0 0 0"),
        (256, 1, "-336 -21 -74 -65 -372"),
        (10**12, 7, "21732511939 -313163374821 -49969435068 -67160635147 -18464098938"),
        (10**15, 1, "-832093459499939 -92406592419713 -608743955072461 -1336820827396819 -1959285587296452"),
    ],
)
def test_known_answers_stay_the_same_on_every_machine_and_version(stream, numerator, denominator, expected):
    drawn = discrete_laplace(stream(), numerator, denominator, 5)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [int(value) for value in expected.split()]


@pytest.mark.parametrize("rows", [200, 2_000])
@pytest.mark.parametrize(("numerator", "denominator"), [*SCALES, (10**12, 7)])
def test_tables_agree_with_decimal_arithmetic_and_draws_with_a_plain_reading_of_them(
    stream, numerator, denominator, rows
):
    """An independent computation: Python's decimal module for the tables, bisect for the digits."""
    with decimal.localcontext(decimal.Context(prec=80)):
        rate = decimal.Decimal(denominator) / numerator
        thresholds = []
        for place in range(len(laplace_tables(numerator, denominator).digits)):
            ratio = (-rate * 256**place).exp()
            steps = [
                int((decimal.Decimal(2**64) * (1 - ratio**j) / (1 - ratio**256)).to_integral_value())
                for j in range(1, 256)
            ]
            thresholds.append([step for step in steps if step < 2**64])
        negative = int((decimal.Decimal(2**64) / (1 + rate.exp())).to_integral_value())
    tables = laplace_tables(numerator, denominator)
    assert [table.tolist() for table in tables.digits] == thresholds
    assert int(tables.negative_below) == negative
    words = stream().words((1 + len(thresholds)) * rows, "discrete-laplace", numerator, denominator).tolist()
    expected = []
    for row in range(rows):
        sign, *digits = words[row * (1 + len(thresholds)) : (row + 1) * (1 + len(thresholds))]
        size = sum(bisect.bisect_right(t, d) * 256**i for i, (t, d) in enumerate(zip(thresholds, digits, strict=True)))
        expected.append(-1 - size if sign < negative else size)
    assert discrete_laplace(stream(), numerator, denominator, rows).tolist() == expected


@pytest.mark.parametrize(("numerator", "denominator"), SCALES)
def test_draws_follow_the_exact_law(stream, numerator, denominator):
    """Chi-square against the exact law, false alarm 1e-6; a scale off by 5 % is caught with power > 0.999."""
    size = 200_000
    drawn = discrete_laplace(stream(), numerator, denominator, size)
    scale = numerator / denominator
    edges = np.unique(np.round(scale * np.linspace(-6, 6, 41)).astype(np.int64))
    expected = _cells(edges, numerator, denominator)
    keep = expected * size >= 5
    observed = np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=len(edges) + 1)
    chi2 = float((((observed - size * expected) ** 2) / (size * expected))[keep].sum())
    critical = stats.chi2.isf(FALSE_ALARM, keep.sum() - 1)
    assert chi2 < critical
    wrong = _cells(edges, numerator * 105, denominator * 100)
    shift = size * float(((wrong - expected) ** 2 / expected)[keep].sum())
    assert stats.ncx2.sf(critical, keep.sum() - 1, shift) > 0.999


def _cells(edges, numerator, denominator):
    """Exact probabilities of the cells (-inf, e0), [e0, e1), ..., [en, inf)."""
    ratio = np.exp(-denominator / numerator)
    # P(X < x) is q^(1-x)/(1+q) up to 0 and 1 - q^x/(1+q) above it.
    magnitude = np.where(edges <= 0, 1 - edges, edges).astype(float)
    below = np.where(edges <= 0, ratio**magnitude / (1 + ratio), 1 - ratio**magnitude / (1 + ratio))
    return np.diff(np.concatenate([[0.0], below, [1.0]]))


@pytest.mark.parametrize(("numerator", "denominator"), [*SCALES, (10**12, 7), (1, 100)])
def test_the_truncation_bounds_the_distance_of_the_table_law_from_the_exact_one(numerator, denominator):
    """Sum over the values that a digit can take, in decimal arithmetic: an independent computation."""
    stated = truncation(numerator, denominator)
    tables = laplace_tables(numerator, denominator)
    assert 0 < stated < Fraction(1, 2**54)
    with decimal.localcontext(decimal.Context(prec=80)):
        rate = decimal.Decimal(denominator) / numerator
        total = (-rate * 256 ** len(tables.digits)).exp()
        for place, table in enumerate(tables.digits):
            ratio = (-rate * 256**place).exp()
            borders = [0, *table.tolist(), *[2**64] * (256 - len(table))]
            drawn = [decimal.Decimal(b - a) / 2**64 for a, b in itertools.pairwise(borders)]
            exact = [ratio**j * (1 - ratio) / (1 - ratio**256) for j in range(256)]
            total += sum(abs(a - b) for a, b in zip(drawn, exact, strict=True)) / 2
        total += abs(decimal.Decimal(int(tables.negative_below)) / 2**64 - 1 / (1 + rate.exp()))
        assert total <= decimal.Decimal(stated.numerator) / stated.denominator <= total + decimal.Decimal(2) ** -80


def test_zero_is_not_counted_twice(stream):
    """P(0) = (1-q)/(1+q) = 0.462 at scale 1; a sign drawn apart would give 0.632. False alarm under 1e-8."""
    share = float(np.mean(discrete_laplace(stream(), 1, 1, 100_000) == 0))
    expected = float(_pmf(np.int64(0), 1, 1))
    assert abs(share - expected) < 6 * np.sqrt(expected * (1 - expected) / 100_000)


@pytest.mark.parametrize("scale", [(0, 1), (1, 0), (-1, 1), (1.5, 1), (True, 1), (10**16, 1)])
def test_an_impossible_scale_is_refused(stream, scale):
    with pytest.raises(BadNoise, match="scale"):
        discrete_laplace(stream(), *scale, 1)


def test_an_impossible_size_is_refused(stream):
    with pytest.raises(BadNoise, match="size"):
        discrete_laplace(stream(), 1, 1, -1)
    with pytest.raises(BadNoise, match="in one draw"):
        stream().words(2**40)
    assert discrete_laplace(stream(), 1, 1, 0).shape == (0,)


def test_the_scale_of_an_epsilon_is_never_smaller_than_its_rounded_up_epsilon_asks():
    assert laplace_scale("1", 1) == (1_000_000, 1_000_000)
    assert Fraction(*laplace_scale("0.6931471805", 3)) == Fraction(3_000_000, 693_148)
    for epsilon, sensitivity in ((0, 1), (1, 0)):
        with pytest.raises(BadNoise, match="epsilon above 0 and sensitivity"):
            laplace_scale(epsilon, sensitivity)


def test_the_variance_is_that_of_the_law():
    assert laplace_variance(1, 1) == pytest.approx(1.8413471884155843, rel=1e-15)
    values = np.arange(-400, 401)
    assert laplace_variance(10, 1) == pytest.approx(float(np.sum(values**2 * _pmf(values, 10, 1))), rel=1e-12)


@given(
    st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2), min_size=1, max_size=5),
)
def test_a_sum_beyond_64_bits_is_refused_and_any_other_is_exact(pairs):
    values, noise = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    exact = [a + b for a, b in pairs]
    if all(-(2**63) <= total < 2**63 for total in exact):
        assert checked_add(values, noise).tolist() == exact
    else:
        with pytest.raises(BadNoise, match="overflow"):
            checked_add(values, noise)


def test_a_sum_of_other_types_or_shapes_is_refused():
    good = np.zeros(2, dtype=np.int64)
    for wrong in (np.zeros(2), np.zeros(3, dtype=np.int64), np.zeros(2, dtype=np.int32)):
        with pytest.raises(BadNoise, match="int64 arrays of one shape"):
            checked_add(good, wrong)


def test_a_stream_shows_no_key_and_does_not_leave_the_process(key, stream):
    one = stream()
    assert key._material.hex() not in repr(one)
    with pytest.raises(PrivacyError, match="pickle"):
        pickle.dumps(one)
    assert one.reproducible


ENTRY = 1 << 50
LAST = 2**64 - 1
THRESHOLDS = {
    "none": [],
    "the ends of the words": [0, LAST],
    "the ends of entries": [ENTRY - 1, ENTRY, 5 * ENTRY, 5 * ENTRY + 1, LAST - ENTRY, LAST - ENTRY + 1],
    "several in one entry, and equal ones": [7 * ENTRY + 1, 7 * ENTRY + 1, 7 * ENTRY + 9, 8 * ENTRY - 1],
    "a digit, little by little": laplace_tables(10**9, 1).digits[0].tolist(),
    "a digit, all in the last entries": laplace_tables(8, 1).digits[0].tolist(),
    "random": np.sort(np.random.default_rng(1).integers(0, LAST, 300, dtype=np.uint64)).tolist(),
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_every_word_has_passed_as_many_thresholds_as_a_search_finds(name):
    thresholds = THRESHOLDS[name]
    edges = [0, LAST, *thresholds, *range(0, LAST, 97 * ENTRY)]
    random = np.random.default_rng(2).integers(0, LAST, 2_000, dtype=np.uint64).tolist()
    words = [word for edge in edges for word in (edge - 1, edge, edge + 1) if 0 <= word <= LAST] + random
    expected = [bisect.bisect_right(thresholds, word) for word in words]
    lookup = ThresholdLookup(np.array(thresholds, dtype=np.uint64))
    counts = lookup.passed(np.array(words, dtype=np.uint64))
    assert counts.dtype == np.int64
    assert counts.tolist() == expected
    for few in (0, 1, 255, 256):
        assert lookup.passed(np.array(words[:few], dtype=np.uint64)).tolist() == expected[:few]
    apart = np.repeat(np.array(words, dtype=np.uint64), 3)[::3]
    assert lookup.passed(apart).tolist() == expected
