"""Keyed discrete Gaussian noise: integers drawn by exact rejection from integer proposals.

The law is P(x) proportional to exp(-x^2 / (2 s)) over the integers, for a rational s (sigma squared).
An attempt proposes and then accepts or rejects, and either step is exact:

1. *Proposal.* Let t be a power of two near sigma/64 and cut the non-negative integers into buckets of length t.
   A 64-bit word picks bucket v with probability a_v / 2^64, where the a_v are whole numbers that sum to 2^64
   and A exp(-(t v)^2 / (2 s)) <= a_v for one number A. Another word gives an offset u, uniform in 0..t-1, and
   a sign. The proposal is y = t v + u; minus zero is rejected, so that zero is not counted twice.
2. *Acceptance* with probability p = A exp(-y^2 / (2 s)) / a_v <= 1. So an attempt ends in x with probability
   (a_v / 2^64) (1 / (2 t)) p, which is proportional to exp(-x^2 / (2 s)): the law asked for, whatever A is.

The acceptance compares a uniform number W with p. A float estimate of p, made with additions and
multiplications alone (IEEE 754 fixes each of them; no libm), decides whenever it differs from W by more than
2^-40; it is off by less than 2^-48, so the decision is the exact one. The rare rest is decided with 256 bits
of W and 320-bit arithmetic. So every machine draws the same integers. Only the far tail is missing: |x| is
below 12 sigma, and what lies beyond is the truncation error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from hushstream.privacy.amounts import MICRO, Number, epsilon_micro
from hushstream.privacy.conversions import context, to_fraction
from hushstream.privacy.errors import BadNoise
from hushstream.privacy.mechanisms.noise import LARGEST_DRAW_BYTES, WORD_BYTES, KeyedStream
from hushstream.privacy.mechanisms.tables import ThresholdLookup

BUCKETS_PER_SIGMA = 64
"""Sigma is 64 to 128 buckets long (or the buckets hold one integer each): 99 % of the attempts succeed."""

REACH = 12
"""Values reach 12 sigma; the mass beyond is below 2^-104."""

LARGEST_VARIANCE = 1 << 92
WORDS_PER_ATTEMPT = 3
SEED_WORDS = 4

_MARGIN = 2.0**-40
_TAYLOR = tuple(float(Fraction((-1) ** n, factorial)) for n, factorial in enumerate([
    1, 1, 2, 6, 24, 120, 720, 5_040, 40_320, 362_880, 3_628_800,
]))  # fmt: skip
_EXACT_BITS = 256
_EXTRA_ROUND = 1 << 63
_CONTEXT = context()
_COVER = _CONTEXT.ldexp(1, -100)


@dataclass(frozen=True, slots=True)
class GaussianTables:
    """Proposals and acceptance of one variance.

    Attributes:
        variance: s, exact.
        offset_bits: log2 of t, the bucket length.
        weights: a_0, a_1, ..., whole numbers that sum to 2^64.
        thresholds: of the buckets: cumulative sums of the weights but the last.
        factor: A, exact.
        bucket_ratio: A exp(-(t v)^2 / (2 s)) / a_v for each bucket, float64.
        offset_rate: t^2 / (2 s), rounded to a float.
        truncation: upper bound on the total variation distance of one draw from the law over all integers.
    """

    variance: Fraction
    offset_bits: int
    weights: tuple[int, ...]
    thresholds: ThresholdLookup
    factor: Fraction
    bucket_ratio: NDArray[np.float64]
    offset_rate: float
    truncation: Fraction


def gaussian_variance_for(rho: Number, squared_sensitivity: int) -> tuple[int, int]:
    """The variance parameter Delta_2^2 / (2 rho) as (numerator, denominator), rho rounded up to millionths.

    The printed rho is rounded up in the same way, so it is the one that the noise has.

    Raises:
        BadNoise: rho 0 or a squared sensitivity below 1.
    """
    micro = epsilon_micro(rho)
    if micro == 0 or squared_sensitivity < 1:
        raise BadNoise(
            f"noise variance: expected rho above 0 and squared sensitivity >= 1, got {rho!r}, {squared_sensitivity!r}"
        )
    return squared_sensitivity * MICRO, 2 * micro


def gaussian_tables(variance_numerator: int, variance_denominator: int) -> GaussianTables:
    """Tables for P(x) proportional to exp(-x^2 denominator / (2 numerator)), built once per variance.

    Raises:
        BadNoise: the variance is not positive, or above 2^92.
    """
    return _gaussian_tables(_variance_of(variance_numerator, variance_denominator))


def _variance_of(numerator: int, denominator: int) -> Fraction:
    for name, value in (("numerator", numerator), ("denominator", denominator)):
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise BadNoise(f"variance {name}: expected a whole number above 0, got {value!r}")
    if numerator > LARGEST_VARIANCE * denominator:
        raise BadNoise(f"variance: expected at most 2^92, got {numerator / denominator:.3g}")
    return Fraction(numerator, denominator)


def _offset_bits(variance: Fraction) -> int:
    bits = 0
    while BUCKETS_PER_SIGMA**2 << (2 * (bits + 1)) <= variance:
        bits += 1
    return bits


def _buckets(variance: Fraction) -> int:
    """How many buckets of length one there are."""
    return isqrt(int(REACH**2 * variance)) + 2


@lru_cache(maxsize=256)
def _gaussian_tables(variance: Fraction) -> GaussianTables:
    bits = _offset_bits(variance)
    # In units of the bucket length: variances that differ by a power of four have one table.
    shape = _bucket_shape(variance / (1 << 2 * bits))
    truncation = _tail(_real(variance), _reach(variance))
    return replace(shape, variance=variance, offset_bits=bits, truncation=truncation)


@lru_cache(maxsize=256)
def _bucket_shape(variance: Fraction) -> GaussianTables:
    """The tables for buckets of length one."""
    buckets = _buckets(variance)
    scale = _real(variance)
    heights = _heights(scale, buckets)
    factor = to_fraction(_CONTEXT.floor(((1 << 64) - 2 * buckets) / sum(heights)))
    times = _real(factor)
    scaled = [times * height for height in heights]
    # The addition covers the error of the 320-bit arithmetic, so that A times the height never exceeds a_v.
    weights = [int(_CONTEXT.floor(height + _COVER)) + 1 for height in scaled]
    weights[0] += (1 << 64) - sum(weights)
    cumulative = np.cumsum(np.array(weights[:-1], dtype=np.uint64), dtype=np.uint64)
    thresholds = ThresholdLookup(cumulative)
    ratio = np.array([float(height / weight) for height, weight in zip(scaled, weights, strict=True)])
    ratio.setflags(write=False)
    rate = float(1 / (2 * variance))
    return GaussianTables(variance, 0, tuple(weights), thresholds, factor, ratio, rate, _tail(scale, buckets))


def _heights(scale: Any, count: int) -> list[Any]:
    """exp(-v^2 / (2 s)) for v below ``count``, each from the one before: (v+1)^2 = v^2 + (2 v + 1).

    After v steps the relative error is that of fewer than (v + 2)^2 roundings: below 2^-290 for the 1,538 buckets
    that there are at most.
    """
    ratio = _CONTEXT.exp(-1 / (2 * scale))
    square, height = ratio * ratio, _CONTEXT.mpf(1)
    heights = []
    for _ in range(count):
        heights.append(height)
        height, ratio = height * ratio, ratio * square
    return heights


def _tail(scale: Any, reach: int) -> Fraction:
    """Upper bound on the mass at |x| >= reach: (reach + k)^2 >= reach^2 + 2 k reach gives a geometric series.

    The normaliser is at least sqrt(2 pi s) by Poisson's summation, and at least 1, its term at zero.
    """
    one_side = _CONTEXT.exp(-(_CONTEXT.mpf(reach) ** 2) / (2 * scale)) / (1 - _CONTEXT.exp(-reach / scale))
    normaliser = max(_CONTEXT.mpf(1), _CONTEXT.sqrt(2 * _CONTEXT.pi * scale))
    return to_fraction(2 * one_side / normaliser) + Fraction(1, 1 << 200)


def discrete_gaussian(
    stream: KeyedStream, variance_numerator: int, variance_denominator: int, size: int
) -> NDArray[np.int64]:
    """Draw ``size`` integers with P(x) proportional to exp(-x^2 denominator / (2 numerator)).

    The stream is read once, for a seed. Attempt r of integer i reads words 3 i to 3 i + 2 of the seed's r-th
    ChaCha20 stream, whatever other integers need: the draw of n is the beginning of a longer draw at the same
    place, and what is drawn next from ``stream`` does not depend on how many attempts there were.

    Args:
        stream: the keyed words of this release.
        variance_numerator: numerator of s = Delta_2^2 / (2 rho), above 0.
        variance_denominator: its denominator, above 0.
        size: how many integers.

    Returns:
        int64, shape (size,); every |value| <= 13 sigma + 2.

    Raises:
        BadNoise: an impossible variance or size.

    Source: Canonne, Kamath, Steinke 2020 (The Discrete Gaussian for Differential Privacy): the law, rejection
    from integer proposals (Algorithm 3; here the proposals are buckets, see the module's docstring), Theorem 4.

    Guarantee:
        Computational, against parties without the key. Added to an integer vector f with ||f(D) - f(D')||_2 <=
        Delta_2 it gives rho-zCDP with rho = Delta_2^2 / (2 s) (Theorem 4, summed over the coordinates). The law
        drawn is the exact one given |x| below its reach: ``gaussian_truncation`` in total variation per integer,
        to be accounted for in delta as with `noise.discrete_laplace`.
    """
    return discrete_gaussian_joint((stream,), variance_numerator, variance_denominator, size).reshape(size)


def discrete_gaussian_joint(
    streams: Sequence[KeyedStream], variance_numerator: int, variance_denominator: int, size: int
) -> NDArray[np.int64]:
    """`discrete_gaussian` for many streams in one pass: int64, shape (number of streams, size)."""
    tables = gaussian_tables(variance_numerator, variance_denominator)
    if size < 0 or size * WORDS_PER_ATTEMPT * WORD_BYTES > LARGEST_DRAW_BYTES:
        raise BadNoise(
            f"discrete Gaussian: expected a size from 0 to"
            f" {LARGEST_DRAW_BYTES // (WORDS_PER_ATTEMPT * WORD_BYTES)}, got {size}"
        )
    label = ("discrete-gaussian", variance_numerator, variance_denominator)
    seeds = [stream.words(SEED_WORDS, *label).astype("<u8").tobytes() for stream in streams]
    result = np.zeros(len(seeds) * size, dtype=np.int64)
    pending = np.arange(result.size)
    attempt = 0
    while pending.size:
        words = _attempt_words(seeds, size, pending, attempt)
        values, accepted = _attempt(tables, words, seeds, size, pending, attempt)
        result[pending[accepted]] = values[accepted]
        pending = pending[~accepted]
        attempt += 1
    return result.reshape(len(seeds), size)


def _attempt_words(seeds: list[bytes], size: int, pending: NDArray[np.int64], attempt: int) -> NDArray[np.uint64]:
    """The three words of every pending integer, uint64 (pending, 3)."""
    owners = range(len(seeds)) if attempt == 0 else np.unique(pending // size).tolist()
    length = size * WORDS_PER_ATTEMPT * WORD_BYTES
    raw = b"".join(_key_stream(seeds[owner], attempt, 0, length) for owner in owners)
    words: NDArray[np.uint64] = np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False)
    words = words.reshape(-1, WORDS_PER_ATTEMPT)
    if attempt == 0:
        return words
    place = np.searchsorted(np.array(owners), pending // size) * size + pending % size
    return np.take(words, place, axis=0)


def _attempt(
    tables: GaussianTables,
    words: NDArray[np.uint64],
    seeds: list[bytes],
    size: int,
    pending: NDArray[np.int64],
    attempt: int,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Make one attempt for every pending integer: its value, and whether it is accepted."""
    bucket = tables.thresholds.passed(words[:, 0])
    offset = (words[:, 1] & np.uint64((1 << tables.offset_bits) - 1)).astype(np.int64)
    magnitude = (bucket << tables.offset_bits) + offset
    negative = (words[:, 1] >> np.uint64(63)).astype(np.int64)
    estimate = _acceptance(tables, bucket, offset)
    uniform = words[:, 2].astype(np.float64) * 2.0**-64
    accepted = uniform < estimate
    for index in np.flatnonzero(np.abs(uniform - estimate) <= _MARGIN).tolist():
        owner, place = divmod(int(pending[index]), size)
        extra = _key_stream(seeds[owner], _EXTRA_ROUND + attempt, place, (_EXACT_BITS - 64) // 8)
        precise = (int(words[index, 2]) << (_EXACT_BITS - 64)) + int.from_bytes(extra, "little")
        accepted[index] = precise < _exact_acceptance(tables, int(bucket[index]), int(magnitude[index]))
    accepted &= (magnitude != 0) | (negative == 0)
    return (magnitude ^ -negative) + negative, accepted


def _acceptance(tables: GaussianTables, bucket: NDArray[np.int64], offset: NDArray[np.int64]) -> NDArray[np.float64]:
    """The acceptance probability to within 2^-48, by additions and multiplications alone.

    y^2 / (2 s) = (t v)^2 / (2 s) + rate (2 v + f) f with f = u/t < 1. The second term is below 12 t/sigma + 2
    (t/sigma)^2 < 0.19, so the first term that ten steps of Taylor's series leave out is below 2^-51.
    """
    fraction = offset * 2.0**-tables.offset_bits
    exponent = tables.offset_rate * ((2.0 * bucket + fraction) * fraction)
    power = np.full(exponent.shape, _TAYLOR[-1])
    for coefficient in _TAYLOR[-2::-1]:
        power *= exponent
        power += coefficient
    return np.asarray(power * tables.bucket_ratio[bucket], dtype=np.float64)


def _exact_acceptance(tables: GaussianTables, bucket: int, magnitude: int) -> int:
    """The acceptance probability in units of 2^-256, rounded down."""
    exponent = _real(Fraction(magnitude**2) / (2 * tables.variance))
    chance = _real(tables.factor) * _CONTEXT.exp(-exponent) / tables.weights[bucket]
    return int(_CONTEXT.floor(chance * (1 << _EXACT_BITS)))


def _key_stream(seed: bytes, attempt: int, first_block: int, length: int) -> bytes:
    nonce = first_block.to_bytes(4, "little") + bytes(4) + attempt.to_bytes(8, "little")
    return Cipher(ChaCha20(seed, nonce), mode=None).encryptor().update(bytes(length))


def _real(value: Fraction) -> Any:
    return _CONTEXT.mpf(value.numerator) / value.denominator


@lru_cache(maxsize=256, typed=True)
def gaussian_reach(variance_numerator: int, variance_denominator: int) -> int:
    """Largest absolute value of a draw."""
    return _reach(_variance_of(variance_numerator, variance_denominator))


def _reach(variance: Fraction) -> int:
    bits = _offset_bits(variance)
    return _buckets(variance / (1 << 2 * bits)) << bits


def gaussian_truncation(variance_numerator: int, variance_denominator: int) -> Fraction:
    """Upper bound on the total variation distance of one draw from the exact discrete Gaussian law."""
    variance = _variance_of(variance_numerator, variance_denominator)
    return _tail(_real(variance), _reach(variance))


def gaussian_variance(variance_numerator: int, variance_denominator: int) -> float:
    """Variance of one draw; at most s (Canonne, Kamath, Steinke 2020, Corollary 9), and equal to it from s = 10 on.

    For s >= 10 the two differ by less than a relative exp(-2 pi^2 s) * 8 pi^2 s, far below a float's precision.
    """
    scale = Fraction(variance_numerator, variance_denominator)
    if scale >= 10:
        return float(scale)
    weights = [_CONTEXT.exp(-_real(x * x / (2 * scale))) for x in range(1, 64)]
    second = sum(x * x * weight for x, weight in enumerate(weights, 1))
    return float(2 * second / (1 + 2 * sum(weights)))
