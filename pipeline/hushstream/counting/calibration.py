"""Computes the noise of one node from a budget, and the price of one leaf from that noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.errors import BadPlan
from hushstream.privacy.amounts import (
    DELTA_ONE,
    MICRO,
    Cost,
    Number,
    delta_text,
    delta_units,
    epsilon_micro,
    epsilon_text,
    epsilon_value,
)
from hushstream.privacy.conversions import exp_above, rho_to_epsilon_micro
from hushstream.privacy.keys import Part
from hushstream.privacy.mechanisms.gaussian import (
    discrete_gaussian_joint,
    gaussian_reach,
    gaussian_truncation,
    gaussian_variance,
    gaussian_variance_for,
)
from hushstream.privacy.mechanisms.k_norm import discrete_k_norm_joint, k_norm_reach, k_norm_truncation, k_norm_variance
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
    truncation,
)
from hushstream.privacy.mechanisms.tables import BASE, laplace_tables

_LARGEST_USEFUL_EXPONENT = 100


class _JoinedStream(KeyedStream):
    """Several streams read side by side: each gives an equal share of every draw."""

    __slots__ = ("_streams",)

    def __init__(self, streams: Sequence[KeyedStream]) -> None:
        self._streams = tuple(streams)

    def words(self, count: int, *label: Part) -> NDArray[np.uint64]:
        words = np.empty((len(self._streams), count // len(self._streams)), dtype="<u8")
        for stream, share in zip(self._streams, words, strict=True):
            stream.fill(share, *label)
        return words.ravel().astype(np.uint64, copy=False)


@dataclass(frozen=True, slots=True)
class NodeNoise:
    """The law of the noise on a node: of one coordinate where they are independent, of all together for ``k-norm``.

    Attributes:
        law: ``laplace`` (P(x) ~ exp(-|x|/a)), ``k-norm`` (P(x) ~ exp(-||x||_2/a), over vectors) or ``gaussian`` (P(x)
            ~ exp(-x^2/(2 a))), over the integers.
        numerator: of a, the scale or the variance parameter.
        denominator: of a.
        coordinates: of one draw; 1 but for ``k-norm``.
    """

    law: Literal["laplace", "k-norm", "gaussian"]
    numerator: int
    denominator: int
    coordinates: int = 1

    @property
    def variance(self) -> float:
        """Variance of one coordinate."""
        if self.law == "k-norm":
            return k_norm_variance(self.numerator, self.denominator, self.coordinates)
        of = laplace_variance if self.law == "laplace" else gaussian_variance
        return of(self.numerator, self.denominator)

    @property
    def truncation(self) -> Fraction:
        """Bound on the total variation distance of one draw from the exact law."""
        if self.law == "k-norm":
            return k_norm_truncation(self.numerator, self.denominator, self.coordinates)
        of = truncation if self.law == "laplace" else gaussian_truncation
        return of(self.numerator, self.denominator)

    @property
    def reach(self) -> int:
        """Largest absolute value of a coordinate."""
        if self.law == "k-norm":
            return k_norm_reach(self.numerator, self.denominator, self.coordinates)
        if self.law == "laplace":
            return int(BASE ** len(laplace_tables(self.numerator, self.denominator).digits))
        return gaussian_reach(self.numerator, self.denominator)

    def draw(self, streams: Sequence[KeyedStream], size: int) -> NDArray[np.int64]:
        """``size`` integers from each stream, int64 (streams, size), in one pass; whole draws one after the other."""
        if self.law == "k-norm":
            owners = [stream for stream in streams for _ in range(size // self.coordinates)]
            vectors = discrete_k_norm_joint(owners, self.numerator, self.denominator, self.coordinates)
            return vectors.reshape(len(streams), size)
        if self.law == "gaussian":
            return discrete_gaussian_joint(streams, self.numerator, self.denominator, size)
        drawn = discrete_laplace(_JoinedStream(streams), self.numerator, self.denominator, len(streams) * size)
        return drawn.reshape(len(streams), size)


@dataclass(frozen=True, slots=True)
class PureEpsilon:
    """A budget of pure epsilon: discrete Laplace noise, sensitivity in L1.

    Attributes:
        epsilon: for the whole stream of releases; rounded up to millionths.
    """

    epsilon: Number
    norm: str = field(default="L1", init=False)

    def __post_init__(self) -> None:
        """Refuse epsilon 0, which no noise gives."""
        if epsilon_micro(self.epsilon) == 0:
            raise BadPlan(f"epsilon: expected a number above 0, got {self.epsilon!r}")

    @property
    def rho_micro(self) -> int | None:
        """None: a pure epsilon has no rho here; filters that add rhos convert it."""
        return None

    def node_noise(self, levels: int, sensitivity: int, dimension: int) -> NodeNoise:
        """Noise of scale levels * Delta_1 / epsilon: a leaf moves ``levels`` nodes by Delta_1 each."""
        return NodeNoise("laplace", *laplace_scale(self.epsilon, levels * sensitivity))

    def cost(self, changed_draws: int, truncation: Fraction) -> Cost:
        """Epsilon, and the delta of the tables when ``changed_draws`` integers differ between neighbours."""
        micro = epsilon_micro(self.epsilon)
        return Cost(micro, truncation_units(changed_draws * truncation, micro))

    def exchange(self, units: int, apart: Fraction, changed_draws: int, truncation: Fraction) -> Cost:
        """Price of ``units`` reports of one person against others: two steps of the null relation for each."""
        return self.many(2 * units, changed_draws, truncation)

    def many(self, units: int, changed_draws: int, truncation: Fraction) -> Cost:
        """Price of ``units`` leaves of one person: group privacy, and noise that differs in more integers."""
        micro = units * epsilon_micro(self.epsilon)
        return Cost(micro, truncation_units(units * changed_draws * truncation, micro))

    def parameters(self) -> dict[str, int]:
        """The settings of the budget that the noise depends on."""
        return {"epsilon_micro": epsilon_micro(self.epsilon)}

    def __str__(self) -> str:
        """The budget as text for people."""
        return f"epsilon {epsilon_text(epsilon_micro(self.epsilon))}"


@dataclass(frozen=True, slots=True)
class PureLength(PureEpsilon):
    """A budget of pure epsilon: one vector of K-norm noise on a node, sensitivity in L2.

    Where d coordinates move together by Delta_2, a coordinate has the variance (d + 1) (Delta_2/epsilon)^2; Laplace
    noise on the L1 sensitivity, which may be sqrt(d) Delta_2, has up to 2 d (Delta_2/epsilon)^2.
    """

    norm: str = field(default="L2", init=False)

    def node_noise(self, levels: int, sensitivity: int, dimension: int) -> NodeNoise:
        """Noise of scale levels * Delta_2 / epsilon: a leaf moves ``levels`` vectors by Delta_2 each."""
        return NodeNoise("k-norm", *laplace_scale(self.epsilon, levels * sensitivity), dimension)


@dataclass(frozen=True, slots=True)
class Concentrated:
    """A budget of rho (zCDP; see `counting.counter` for the orders that hold): discrete Gaussian noise, L2.

    Attributes:
        rho: for the whole stream of releases; rounded up to millionths.
        delta: at which epsilon is printed.
    """

    rho: Number
    delta: Number
    norm: str = field(default="L2", init=False)

    def __post_init__(self) -> None:
        """Refuse rho 0 and a delta at which no epsilon exists."""
        if epsilon_micro(self.rho) == 0:
            raise BadPlan(f"rho: expected a number above 0, got {self.rho!r}")
        if not 0 < delta_units(self.delta) < DELTA_ONE:
            raise BadPlan(f"delta: expected above 0 and below 1, got {self.delta!r}")

    @classmethod
    def for_epsilon(cls, epsilon: Number, delta: Number) -> Concentrated:
        """The largest rho, in millionths, whose printed epsilon at ``delta`` is at most ``epsilon``.

        Raises:
            BadPlan: an epsilon that not even a millionth of rho gives at this delta.
        """
        target, units = epsilon_micro(epsilon), delta_units(delta)
        low, high = 0, 1
        while rho_to_epsilon_micro(high, units) <= target:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if rho_to_epsilon_micro(middle, units) <= target else (low, middle)
        if not low:
            raise BadPlan(f"epsilon: expected one that some rho gives at delta {delta}, got {epsilon!r}")
        return cls(Fraction(low, MICRO), delta)

    @property
    def rho_micro(self) -> int | None:
        """Rho of the whole stream for one unit, in millionths."""
        return epsilon_micro(self.rho)

    def node_noise(self, levels: int, sensitivity: int, dimension: int) -> NodeNoise:
        """Noise of variance levels * Delta_2^2 / (2 rho): a leaf moves ``levels`` nodes by Delta_2 each."""
        return self.noise_for(levels * sensitivity**2)

    def noise_for(self, squared_sensitivity: int) -> NodeNoise:
        """Noise for a squared L2 sensitivity of all draws together."""
        return NodeNoise("gaussian", *gaussian_variance_for(self.rho, squared_sensitivity))

    def cost(self, changed_draws: int, truncation: Fraction) -> Cost:
        """Epsilon at delta, plus the missing tail when ``changed_draws`` integers differ between neighbours."""
        return self.many(1, changed_draws, truncation)

    def exchange(self, units: int, apart: Fraction, changed_draws: int, truncation: Fraction) -> Cost:
        """Price of ``units`` reports of one person against others; ``apart`` is that of `Neighbours`."""
        return self._cost(units * units * apart, 2 * units, changed_draws, truncation)

    def many(self, units: int, changed_draws: int, truncation: Fraction) -> Cost:
        """Price of ``units`` leaves of one person: ``units`` times the distance, units^2 times rho."""
        return self._cost(Fraction(units * units), units, changed_draws, truncation)

    def _cost(self, squares: Fraction, draws: int, changed_draws: int, truncation: Fraction) -> Cost:
        micro = rho_to_epsilon_micro(math.ceil(squares * epsilon_micro(self.rho)), delta_units(self.delta))
        tail = truncation_units(draws * changed_draws * truncation, micro)
        return Cost(micro, min(DELTA_ONE, delta_units(self.delta) + tail))

    def parameters(self) -> dict[str, int]:
        """The settings of the budget that the noise depends on."""
        return {"rho_micro": epsilon_micro(self.rho)}

    def __str__(self) -> str:
        """The budget as text for people."""
        return f"rho {epsilon_text(epsilon_micro(self.rho))} (at delta {delta_text(delta_units(self.delta))})"


Budget: TypeAlias = PureEpsilon | Concentrated


def truncation_units(variation: Fraction, micro: int) -> int:
    """(1 + e^eps) times a total variation distance, in units of 2^-80, at most 1."""
    if micro > _LARGEST_USEFUL_EXPONENT * MICRO:
        return DELTA_ONE if variation else 0
    return min(DELTA_ONE, math.ceil(variation * (1 + exp_above(epsilon_value(micro))) * DELTA_ONE))
