"""Keyed integer noise: the same key and address give the same noise on every machine (PRIVACY rules 5 to 8).

A release must be a pure function of the log, so its noise is derived and not drawn at random: HMAC-SHA256 of the zone's
key over the full address of the release gives a stream key, and ChaCha20 under it the words that the tables of
`hushstream.privacy.mechanisms.tables` turn into discrete Laplace integers. After the tables only integer comparisons,
shifts and additions happen: no floating point, no library generator.

If the same noise covers two different contents, their difference is exact. So the address of the noise also holds a
keyed digest of the content that it covers, like a synthetic initialisation vector in place of a nonce (Rogaway,
Shrimpton 2006). A journal that was rolled back and continues with other data draws other noise, and with the same data
the same noise. The guarantee that follows is proved in `deploy/docs/proofs.md`, with the one exception: the nodes of
trees that reach beyond what they are first drawn for (`hushstream.counting.tree`).

*Coins.* Keyed coins, choices and orders: secret sampling and sorting that a replay repeats exactly.

*Amplification.* What secret sampling of slots does to epsilon, in both directions, rounded to the safe side.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import NoReturn, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from hushstream.privacy.amounts import MICRO, Number, epsilon_micro, epsilon_value, exact
from hushstream.privacy.conversions import context, exp_above, exp_below, log_above
from hushstream.privacy.errors import BadAmount, BadNoise, PrivacyError
from hushstream.privacy.keys import Key, Part, encode
from hushstream.privacy.mechanisms.tables import BASE_BITS, laplace_tables

VERSION = 2
"""Version of the address encoding and of every rule that turns words into draws; a journal stays with its own
(`hushstream.engine.journal.chain`)."""

NONCE_BYTES = 32
WORD_BYTES = 8
LARGEST_DRAW_BYTES = 1 << 37
"""One draw stays below 2^31 ChaCha20 blocks of 64 bytes, half of what its 32-bit block counter can name."""

Parameter: TypeAlias = int | str | bytes


@dataclass(frozen=True, slots=True)
class NoiseAddress:
    """Everything that names the noise of one release. Two releases that differ in any part share no noise.

    Attributes:
        purpose: what is drawn ("release-noise", "sampling", ...).
        deployment: the deployment's id.
        genesis_nonce: the 32 random bytes of the journal's first record. After a broker was wiped, the new journal has
            other noise.
        system: its name.
        mechanism: for instance "slot-sums".
        parameters: every noise parameter by name (epsilon in millionths, levels, cells, ...).
        config_digest: digest of the whole configuration.
        epoch: the journal's epoch; a new one has new noise.
        window: the closed window's number, or None.
        node: the place in a counter (counter, level, index, ...), empty outside counters.
        cell: one cell, or None when one stream serves all cells in their fixed order.
        coordinate: one coordinate, or None when one stream serves all in order.
        partition: the home partition whose journal pays for the release.
        content: keyed digest of the content that the noise covers; empty if the noise must be drawn before its content
            has come, or covers no content.
    """

    purpose: str
    deployment: str
    genesis_nonce: bytes
    system: str
    mechanism: str
    parameters: Mapping[str, Parameter]
    config_digest: bytes
    epoch: int
    window: int | None = None
    node: tuple[int, ...] = ()
    cell: int | None = None
    coordinate: int | None = None
    partition: int = 0
    content: bytes = b""

    def __post_init__(self) -> None:
        """Refuse an address that does not name its release.

        Raises:
            BadNoise: an empty name or digest, or a nonce that is not 32 bytes.
        """
        for name in ("purpose", "deployment", "system", "mechanism", "config_digest"):
            if not getattr(self, name):
                raise BadNoise(f"noise address: expected a non-empty {name}, got an empty one")
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))
        if len(self.genesis_nonce) != NONCE_BYTES:
            raise BadNoise(f"noise address: expected {NONCE_BYTES} nonce bytes, got {len(self.genesis_nonce)}")

    def encode(self) -> bytes:
        """The address as bytes; two different addresses never encode alike (see `encoding.encode`)."""
        parameters: list[Part] = []
        for name in sorted(self.parameters):
            parameters += [name, self.parameters[name]]
        return encode(
            VERSION,
            self.purpose,
            self.deployment,
            self.genesis_nonce,
            self.system,
            self.mechanism,
            tuple(parameters),
            self.config_digest,
            self.epoch,
            self.window,
            self.node,
            self.cell,
            self.coordinate,
            self.partition,
            self.content,
        )

    def at(self, purpose: str) -> NoiseAddress:
        """The address of the same release for another purpose."""
        return replace(self, purpose=purpose)


class KeyedStream:
    """The words of one address, one draw after the other.

    Every draw has a label (its law and all parameters), a number, and a ChaCha20 key that is derived from both. So a
    draw of n values is the beginning of a longer draw, and the same address with two scales (by mistake) gives
    unrelated noise.
    """

    __slots__ = ("_address", "_draws", "_key", "reproducible")

    def __init__(self, key: Key, address: NoiseAddress) -> None:
        """Begin the stream of ``address`` under ``key``."""
        self._key = key
        self._address = address.encode()
        self._draws = 0
        self.reproducible = key.reproducible

    def words(self, count: int, *label: Part) -> NDArray[np.uint64]:
        """The next draw: ``count`` uniform 64-bit words, shape (count,), uint64.

        Args:
            count: number of words.
            label: what the words are for: law and parameters.

        Raises:
            BadNoise: a negative count, or one beyond the reach of the cipher's counter.
        """
        _require_count(count)
        words = np.empty(count, dtype="<u8")
        self.fill(words, *label)
        return words if sys.byteorder == "little" else words.astype(np.uint64)

    def fill(self, words: NDArray[np.uint64], *label: Part) -> None:
        """The next draw, written into ``words``, which are contiguous and of type ``<u8``.

        Raises:
            BadNoise: more words than the cipher's counter reaches.
        """
        _require_count(words.size)
        stream_key = self._key.prf_encoded("noise", encode(self._address) + _encoded_draw(self._draws, *label))
        self._draws += 1
        # The key is used once, so the nonce (and the block counter in it) starts at zero.
        encryptor = Cipher(ChaCha20(stream_key, bytes(16)), mode=None).encryptor()
        encryptor.update_into(bytes(words.nbytes), words.data.cast("B"))

    def __repr__(self) -> str:
        """The position of the stream; never its key."""
        return f"KeyedStream(draws={self._draws})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse: a pickled stream would carry its key out of the zone."""
        raise PrivacyError("keyed stream: expected to stay in this process, got a request to pickle it")


@lru_cache(maxsize=256, typed=True)
def _encoded_draw(*parts: Part) -> bytes:
    """Encode number, law and parameters of a draw. A cache is used, because many streams make the same draws."""
    return encode(*parts)


def _require_count(count: int) -> None:
    if count < 0 or count * WORD_BYTES > LARGEST_DRAW_BYTES:
        raise BadNoise(f"words: expected 0 to {LARGEST_DRAW_BYTES // WORD_BYTES} in one draw, got {count}")


def laplace_scale(epsilon: Number, sensitivity: int) -> tuple[int, int]:
    """The scale sensitivity/epsilon as (numerator, denominator), with epsilon rounded up to whole millionths.

    The printed epsilon is rounded up in the same way, so it is the one that the noise has.

    Raises:
        BadNoise: epsilon 0 or a sensitivity below 1.
    """
    micro = epsilon_micro(epsilon)
    if micro == 0 or sensitivity < 1:
        raise BadNoise(f"noise scale: expected epsilon above 0 and sensitivity >= 1, got {epsilon!r}, {sensitivity!r}")
    return sensitivity * MICRO, micro


def discrete_laplace(stream: KeyedStream, scale_numerator: int, scale_denominator: int, size: int) -> NDArray[np.int64]:
    """Draw ``size`` integers with P(x) proportional to exp(-|x| denominator/numerator).

    Each integer consumes the same number of words whatever they hold (one for the sign, one for each base-256
    digit), in the order of the integers: the draw of n is the beginning of a longer draw at the same place.

    Args:
        stream: the keyed words of this release.
        scale_numerator: numerator of the scale s = Delta_1/epsilon, above 0.
        scale_denominator: its denominator, above 0.
        size: how many integers.

    Returns:
        int64, shape (size,); every |value| <= 2^56.

    Raises:
        BadNoise: an impossible scale or size.

    Source: the geometric mechanism of Ghosh, Roughgarden, Sundararajan 2012 (SIAM J. Comput. 41(6)); the
    digit and sign decompositions are proved in `hushstream.privacy.mechanisms.tables`.

    Guarantee:
        Computational, against parties without the key. With exact uniform words and exact tables, adding this
        noise to an integer vector f gives P(f(D) + X = y) / P(f(D') + X = y) = prod_i exp((|y_i - f_i(D')| -
        |y_i - f_i(D)|)/s) <= exp(||f(D) - f(D')||_1 / s) by the triangle inequality: pure epsilon =
        Delta_1 / s. The tables are off by at most ``truncation`` in total variation per integer. If neighbours
        differ in c integers only, the noise of all others has one law under both and costs nothing, so for
        every event E: P'(E) <= P(E) + c r <= e^eps Q(E) + c r <= e^eps Q'(E) + (1 + e^eps) c r, that is
        delta <= (1 + e^eps) c r with r = ``truncation``. The words are those of HMAC-SHA256 and ChaCha20: whoever can
        distinguish them from uniform words has broken one of the two.
    """
    tables = laplace_tables(scale_numerator, scale_denominator)
    if size < 0:
        raise BadNoise(f"discrete Laplace: expected a size >= 0, got {size}")
    width = 1 + len(tables.digits)
    words = stream.words(size * width, "discrete-laplace", scale_numerator, scale_denominator)
    columns = words.reshape(size, width)
    draw = tables.lookups[0].passed(columns[:, 1])
    for place, lookup in enumerate(tables.lookups[1:], 1):
        digit = lookup.passed(columns[:, 1 + place])
        digit <<= BASE_BITS * place
        draw |= digit
    # The complement of g is -1-g: exactly the negative side of the decomposition.
    negative = (columns[:, 0] < tables.negative_below).astype(np.int64)
    np.negative(negative, out=negative)
    draw ^= negative
    return draw


def truncation(scale_numerator: int, scale_denominator: int) -> Fraction:
    """Upper bound on the total variation distance of one draw from the exact discrete Laplace law."""
    return laplace_tables(scale_numerator, scale_denominator).truncation


@lru_cache(maxsize=256)
def laplace_variance(scale_numerator: int, scale_denominator: int) -> float:
    """Variance 2q/(1-q)^2 of one draw, q = exp(-denominator/numerator); the same float on every machine."""
    exact = context()
    ratio = exact.exp(-exact.mpf(scale_denominator) / scale_numerator)
    return float(2 * ratio / (1 - ratio) ** 2)


def checked_add(values: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.int64]:
    """``values + noise`` of equal shapes, int64, refusing instead of wrapping around.

    Raises:
        BadNoise: other types or shapes, or a sum beyond 64 bits. The message repeats no value.
    """
    if values.dtype != np.int64 or noise.dtype != np.int64 or values.shape != noise.shape:
        raise BadNoise(
            f"sum: expected int64 arrays of one shape, got {values.dtype} {values.shape}"
            f" and {noise.dtype} {noise.shape}"
        )
    total = values + noise
    # A sum wrapped exactly when its sign differs from the sign of both terms.
    if np.any((values ^ total) & (noise ^ total) < 0):
        raise BadNoise("sum: expected to stay within 64 bits, got an overflow")
    return total


COIN_BITS = 64
COIN_ONE = 1 << COIN_BITS
"""Probability 1 in units of 2^-64."""


def probability_units(probability: Number) -> int:
    """A probability in units of 2^-64, rounded up. The coin has this probability, and so has the accounting.

    Raises:
        BadNoise: not in [0, 1].
        BadAmount: not a number.
    """
    value = exact(probability, "probability")
    if not 0 <= value <= 1:
        raise BadNoise(f"probability: expected a number from 0 to 1, got {probability!r}")
    return math.ceil(value * COIN_ONE)


def coin_probability(units: int) -> Fraction:
    """The exact probability of a coin of ``units`` 2^-64."""
    return Fraction(units, COIN_ONE)


def bernoulli(stream: KeyedStream, units: int, size: int) -> NDArray[np.bool_]:
    """Throw ``size`` independent coins that are True with probability exactly units/2^64.

    Args:
        stream: the keyed words.
        units: 0 to 2^64, see `probability_units`.
        size: how many.

    Returns:
        bool, shape (size,). The first n are the same for every size >= n.

    Raises:
        BadNoise: units out of range.

    Guarantee:
        Computational: to parties without the key the coins are independent and secret, which is what
        amplification by sampling needs (each slot kept with probability p, whatever it holds).
    """
    if not 0 <= units <= COIN_ONE:
        raise BadNoise(f"coin: expected 0 to 2^64 units, got {units}")
    words = stream.words(size, "bernoulli", units)
    if units == COIN_ONE:
        return np.ones(size, dtype=np.bool_)
    return words < np.uint64(units)


def choice(stream: KeyedStream, below: int) -> int:
    """A uniform integer in [0, below): 128 bits times ``below``, top part; its bias is under below * 2^-128.

    Raises:
        BadNoise: ``below`` is not from 1 to 2^63.
    """
    if not 1 <= below <= 1 << 63:
        raise BadNoise(f"choice: expected 1 to 2^63 possibilities, got {below}")
    high, low = stream.words(2, "choice", below)
    return ((int(high) << 64 | int(low)) * below) >> 128


def permutation(stream: KeyedStream, size: int) -> NDArray[np.int64]:
    """A uniform order of 0..size-1: positions sorted by 128-bit keys.

    Two keys are equal (and then keep their order) with probability under size^2 * 2^-129, which bounds the
    distance from the uniform law.

    Returns:
        int64, shape (size,).
    """
    words = stream.words(2 * size, "permutation", size)
    return np.lexsort((words[1::2], words[0::2])).astype(np.int64)


def amplified_epsilon_micro(epsilon: Number, sampling: Number) -> int:
    """ln(1 + p (e^eps - 1)) in millionths, rounded up.

    Args:
        epsilon: of the mechanism that sees the kept slots; rounded up to millionths, at most 1,000.
        sampling: p, in (0, 1]; rounded up to a multiple of 2^-64, as the coin is.

    Raises:
        BadAmount: p is 0, or epsilon is too large.

    Guarantee:
        Zero-out relation, each slot kept with probability p, independently and secretly. With the slot null
        the release has law Q; with a report in it, p P + (1-p) Q, where P and Q are within e^eps of each
        other for every choice of the other slots' coins. The mixture is at most (p e^eps + 1 - p) Q, and, as
        Q <= e^eps P, at least (p e^-eps + 1 - p) Q; and 1/(p e^-eps + 1 - p) <= p e^eps + 1 - p, since their
        product is 1 + p (1-p) (e^eps + e^-eps - 2) >= 1. (Li, Qardaji, Su 2012, Theorem 1.)
    """
    micro, chance = epsilon_micro(epsilon), _chance(sampling)
    if chance == 1:
        return micro
    return math.ceil(log_above(1 + chance * (exp_above(epsilon_value(micro)) - 1)) * MICRO)


def noise_epsilon(target: Number, sampling: Number) -> Fraction:
    """The largest epsilon in whole millionths whose amplified value is at most ``target``.

    Args:
        target: the epsilon to promise, in (0, 1,000].
        sampling: p, in (0, 1].

    Raises:
        BadAmount: p is 0, or the target is too large.
    """
    goal, chance = epsilon_micro(target), _chance(sampling)
    if chance == 1:
        return epsilon_value(goal)
    guess = log_above(1 + (exp_below(epsilon_value(goal)) - 1) / chance)
    micro = math.floor(guess * MICRO)
    # The logarithm is an upper bound: at a boundary its floor can be one too many, never more.
    if amplified_epsilon_micro(epsilon_value(micro), sampling) > goal:
        micro -= 1
    return epsilon_value(micro)


def _chance(sampling: Number) -> Fraction:
    units = probability_units(sampling)
    if not 0 < units <= COIN_ONE:
        raise BadAmount(f"sampling probability: expected above 0 and at most 1, got {sampling!r}")
    return coin_probability(units)
