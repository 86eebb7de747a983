"""Buffered linear Toeplitz counter (BLT): correlated Gaussian noise from a handful of buffers.

C is lower triangular and Toeplitz with c_0 = 1 and c_k = sum_i w_i q_i^(k-1). Fresh noise z_t is drawn for each
leaf and y = C^-1 z is added to the leaves; y_t = z_t - g_t, where g_t = sum_i w_i S_i and S_i <- q_i S_i + y_t. So
A = L R with R = C and L = A C^-1, and the sensitivity is the L2 norm of C's first column.

C is not a matrix of whole numbers, and the usual double arithmetic around it has no proof. Here all of it is
whole numbers on a finer lattice (2^F units to one of the leaves' lattice), with w_i and 1 - q_i dyadic and g_t
rounded down, and the rounding is part of the sensitivity:

*Guarantee.* Let r_t = 2^F x_t + y_t; the releases are a function of r_1, r_2, ..., by sums and a rounding. Given r
before t, y before t follows from the leaves: y_s = r_s - 2^F x_s. So r_t is z_t plus a whole number that follows from
past releases and leaves: this is a sequence of adaptively chosen Gaussian mechanisms on whole numbers, each with fresh
noise. Neighbours that differ by v in leaf j differ, given equal r, by 2^F v in y_j and nowhere else, so the whole
numbers differ at j by 2^F v and k steps later by c_k 2^F v up to rounding: each buffer's rounding differs by at most
one unit of 2^-G a step, kept for at most min(T, 1/(1-q_i)) steps, and g_t's by one unit for each rounding down. With e
a bound on that, the squared distances sum to at most (||c|| 2^F Delta_2 + e sqrt(T d))^2 (Minkowski), whatever the
leaves and past releases were, and adaptive composition under that bound (Feldman, Zrnic 2021, Theorem 4.3, order by
order) gives rho for noise of that variance over 2 rho. For c leaves of one person the distance is at most c times that.

*A fork.* The address of z_t contains its step and the history up to leaf t, so a counter that continues from an older
state with other leaves draws other noise. No earlier vector is drawn again, because buffers and running sum are state
and hold all that later releases need. Both branches together are one adaptive sequence of such mechanisms, which has
the common steps once. A leaf moves those of each branch by at most the distance above, so the squares add up to 2 rho.

Sources: Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024 (Efficient and Near-Optimal Noise Generation for
Streaming Differential Privacy); McMahan, Xu, Zhang 2024. The parameters are our own minimisers of the root mean
square error at the stated horizons; `BltShape` has the closed forms that follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.calibration import Concentrated, NodeNoise
from hushstream.counting.counter import Counter, DrawingCounter, Factorisation, Plan, Wanted
from hushstream.counting.digits import Neighbours
from hushstream.counting.errors import BadPlan, BadState
from hushstream.counting.nodes import HISTORY_BYTES, NodeSource
from hushstream.privacy.amounts import count_text, ratio_text
from hushstream.privacy.conversions import context, to_fraction
from hushstream.privacy.mechanisms.noise import Parameter
from hushstream.privacy.promises.promise import Deployment, Guarantee

MANTISSA_BITS = 31
"""Weights and gaps are below 1, and below 2^31 in units of 2^-bits: `blt` multiplies them in 64 bits."""

_CONTEXT = context()
_SLACK = Fraction(1, 1 << 200)


@dataclass(frozen=True, slots=True)
class BltShape:
    """C with c_k = sum_i w_i (1 - gap_i)^(k-1).

    Attributes:
        horizon: number of leaves for which the error was minimised; longer streams want another shape.
        decimals: (weight, gap) as decimal texts; what is used is `pairs`, the nearest dyadic numbers.
    """

    horizon: int
    decimals: tuple[tuple[str, str], ...]

    @property
    def dyadic(self) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        """(weight, gap), each as (mantissa, bits): mantissa / 2^bits."""
        return tuple((_dyadic(weight), _dyadic(gap)) for weight, gap in self.decimals)

    @property
    def pairs(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """(weight, gap), exact."""
        return tuple((Fraction(w, 1 << b), Fraction(g, 1 << c)) for (w, b), (g, c) in self.dyadic)

    def squared_norm(self, leaves: int) -> Fraction:
        """Squared L2 norm of C's first column with ``leaves`` entries, rounded up."""
        total = _CONTEXT.mpf(1)
        for weight, gap in self.pairs:
            for other, second in self.pairs:
                product = _real((1 - gap) * (1 - second))
                total += _real(weight * other) * (1 - product ** (leaves - 1)) / (1 - product)
        return to_fraction(total) + _SLACK

    def column(self, leaves: int) -> NDArray[np.float64]:
        """C's first column, float64 (leaves,)."""
        steps = np.arange(leaves - 1)
        tail = sum(float(weight) * (1 - float(gap)) ** steps for weight, gap in self.pairs)
        return np.concatenate([[1.0], np.broadcast_to(np.asarray(tail, dtype=np.float64), steps.shape)])

    def mean_square(self, leaves: int) -> float:
        """Mean over t = 1..leaves of the squared norm of row t of A C^-1.

        With u = 1/x, A C^-1 has the generating function u prod(u - q_i) / ((u - 1) prod(u - p_i)), where the p_i
        are the eigenvalues of diag(q) - 1 w^T. Partial fractions make its coefficients sums of powers, and their
        squares geometric sums.
        """
        weights = np.array([float(weight) for weight, _ in self.pairs])
        gaps = np.array([float(gap) for _, gap in self.pairs])
        # The eigenvalues of the complement are computed, so that the distances of those near 1 from 1 are precise.
        distances = np.linalg.eigvals(np.diag(gaps) + np.outer(np.ones_like(weights), weights))
        if np.abs(np.imag(distances)).max() > 0:
            raise BadPlan("BLT shape: expected real poles of the inverse, got complex ones")
        away = np.concatenate([[0.0], np.real(distances)])
        residues = np.array(
            [np.prod(gaps - pole) / np.prod(np.delete(away, place) - pole) for place, pole in enumerate(away)]
        )
        far = away[:, None] + away[None, :] - np.outer(away, away)
        return float(np.sum(np.outer(residues, residues) * _mean_geometric(far, leaves)))


def _mean_geometric(far: NDArray[np.float64], leaves: int) -> NDArray[np.float64]:
    """Mean over t = 1..leaves of sum_{k<t} (1-far)^k."""
    safe = np.where(far > 0, far, 0.5)
    # The poles lie strictly inside the unit interval; where there is none, 1/2 stands in and is not used.
    powers = np.exp(leaves * np.log1p(-safe))
    partial = (1 - safe) * (1 - powers) / safe
    return np.asarray(np.where(far > 0, (leaves - partial) / (safe * leaves), (leaves + 1) / 2))


def lower_bound(leaves: int) -> float:
    """No factorisation has a smaller root mean square error, in units of Delta_2 / sqrt(2 rho).

    The nuclear norm of A over T: ||L||_F ||R||_(1->2) / sqrt(T) >= ||A||_* / T, and the singular values of A are
    1 / (2 sin((2j-1) pi / (4T+2))), j = 1..T. (Henzinger, Upadhyay, Upadhyay 2023, section 5.)
    """
    total, step = 0.0, 1 << 20
    for start in range(1, leaves + 1, step):
        places = np.arange(start, min(start + step, leaves + 1), dtype=np.float64)
        total += float(np.sum(0.5 / np.sin((2 * places - 1) * (math.pi / (4 * leaves + 2)))))
    return total / leaves


@lru_cache(maxsize=256)
def _dyadic(decimal: str) -> tuple[int, int]:
    """The nearest mantissa / 2^bits to a number from 2^-60 to 1, with a mantissa below 2^31 and at least 31 bits."""
    value = Fraction(decimal)
    bits = MANTISSA_BITS
    while value * (1 << (bits + 1)) < (1 << MANTISSA_BITS) - 1:
        bits += 1
    return round(value * (1 << bits)), bits


def _real(value: Fraction) -> Any:
    return _CONTEXT.mpf(value.numerator) / value.denominator


_SHAPES = (
    BltShape(
        1 << 10,
        (
            ("0.17352", "0.54742"),
            ("0.16876", "0.14103"),
            ("0.092383", "0.027123"),
            ("0.065993", "0.0027343"),
        ),
    ),
    BltShape(
        1 << 14,
        (
            ("0.15463", "0.58494"),
            ("0.16692", "0.17085"),
            ("0.09322", "0.039635"),
            ("0.045585", "0.0085885"),
            ("0.022951", "0.0016719"),
            ("0.016523", "0.00017079"),
        ),
    ),
    BltShape(
        1 << 20,
        (
            ("0.281", "0.33255"),
            ("0.1398", "0.039775"),
            ("0.046425", "0.0040792"),
            ("0.014785", "0.000411"),
            ("0.0047354", "4.0695e-05"),
            ("0.0022145", "2.8305e-06"),
        ),
    ),
    BltShape(
        1 << 24,
        (
            ("0.3216", "0.22403"),
            ("0.1087", "0.015913"),
            ("0.027868", "0.0010152"),
            ("0.0070152", "6.4266e-05"),
            ("0.0017677", "4.0273e-06"),
            ("0.00060726", "1.9356e-07"),
        ),
    ),
    BltShape(
        1 << 30,
        (
            ("0.33007", "0.12102"),
            ("0.06924", "0.004149"),
            ("0.012494", "0.00013403"),
            ("0.0022432", "4.321e-06"),
            ("0.00040234", "1.3855e-07"),
            ("9.0041e-05", "3.6538e-09"),
        ),
    ),
)


@lru_cache(maxsize=256)
def shape_for(horizon: int) -> BltShape:
    """The shape of the smallest stated horizon that is not below ``horizon``, or of the largest one."""
    return next((shape for shape in _SHAPES if shape.horizon >= horizon), _SHAPES[-1])


_FINE_BITS = 30
"""The sensitivity has about 2^30 units of the fine lattice: at T = 2^30 and d = 2,500 roundings add 0.2 % to it."""

NOT_WHOLE = (
    "its matrix is not integer, so its weights act in whole numbers on a finer lattice; their roundings are counted in"
    " the sensitivity by a bound proved by hand."
    " Who wants no such bound takes a digit tree with Gaussian noise"
)

_GUARD_BITS = 18
_SAFE_BITS = 62
_HALF_BITS = MANTISSA_BITS
_LOW = (1 << _HALF_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedToeplitz(Plan):
    """BLT with 4 or 6 buffers, for a budget in rho."""

    mechanism: ClassVar[str] = "buffered linear Toeplitz"
    source: ClassVar[str] = "Dvijotham et al. 2024"

    def _check(self) -> None:
        if not isinstance(self.budget, Concentrated):
            raise BadPlan(f"buffered linear Toeplitz: expected a budget in rho, got {self.budget}")
        # A buffer's spread is below 4 sigma (its filter's L2 norm): 2^62 is then beyond 2^5 spreads.
        if self.noise.numerator > self.noise.denominator << (2 * (_SAFE_BITS - 7 - _GUARD_BITS)):
            raise BadPlan("buffered Toeplitz: expected noise below 2^37 fine units, got more; raise rho or coarsen")

    @property
    def shape(self) -> BltShape:
        """Weights and decays for the horizon."""
        return shape_for(self.horizon)

    @property
    def levels(self) -> int:
        """1, because there is no tree."""
        return 1

    @property
    def fine_bits(self) -> int:
        """F: a unit of the leaves' lattice is 2^F fine units."""
        return max(0, _FINE_BITS - self.sensitivity.bit_length())

    @property
    def rounding(self) -> Fraction:
        """e: how far roundings can move one coordinate of one step, in fine units."""
        kept = sum(
            (weight * min(Fraction(self.horizon), 1 / gap) for weight, gap in self.shape.pairs), start=Fraction(0)
        )
        buffers = len(self.shape.pairs)
        return 1 + Fraction(buffers, 1 << _GUARD_BITS) + kept / (1 << _GUARD_BITS)

    @property
    def squared_sensitivity(self) -> int:
        """(||c|| 2^F Delta_2 + e sqrt(T d))^2 in fine units, rounded up."""
        column = math.isqrt(math.ceil(self.shape.squared_norm(self.horizon) * (1 << 64))) + 1
        exact = Fraction(column * self.sensitivity << self.fine_bits, 1 << 32)
        rounding = self.rounding * (math.isqrt(self.horizon * self.dimension) + 1)
        return math.ceil((exact + rounding) ** 2)

    @property
    def noise(self) -> NodeNoise:
        """Law of one coordinate of z_t, in fine units."""
        return _noise(self)

    @property
    def changed_draws(self) -> int:
        """Every draw from the leaf on."""
        return self.horizon * self.dimension

    @property
    def parameters(self) -> dict[str, Parameter]:
        """See `Plan.parameters`; it adds the shape and the arithmetic."""
        return {
            **Plan.parameters.__get__(self),
            "shape_horizon": self.shape.horizon,
            "fine_bits": self.fine_bits,
            "guard_bits": _GUARD_BITS,
        }

    def mean_square(self, leaves: int) -> float:
        """Mean over t of the squared norm of row t of A C^-1, times the variance of z."""
        return self.shape.mean_square(leaves) * self.noise.variance * 4.0**-self.fine_bits

    def guarantee(
        self,
        neighbours: Neighbours | None = None,
        units_in_life: int = 1,
        deployment: Deployment = "hosted",
        zone: str = "counter",
    ) -> Guarantee:
        """See `Plan.guarantee`; it also names its argument, because the matrix has no integer entries."""
        promise = Plan.guarantee(self, neighbours, units_in_life, deployment, zone)
        return replace(promise, conditions=(*promise.conditions, NOT_WHOLE))

    def _shape_text(self) -> str:
        return f"{count_text(len(self.shape.pairs), 'buffer')}, {count_text(self.fine_bits, 'bit')} below the lattice"

    def _noise_text(self) -> str:
        return f"variance {ratio_text(self.noise.numerator, self.noise.denominator)} on the counter's inner lattice"

    def factorisation(self, leaves: int) -> Factorisation:
        """R = C and L = A C^-1, without roundings."""
        column = self.shape.column(leaves)
        place = np.subtract.outer(np.arange(leaves), np.arange(leaves))
        right = np.where(place >= 0, column[np.maximum(place, 0)], 0.0)
        left = np.linalg.solve(right.T, np.tril(np.ones((leaves, leaves))).T).T
        return Factorisation(np.asarray(left, dtype=np.float64), right)

    def open_on(self, nodes: NodeSource) -> Counter:
        return BltCounter(self, nodes)


@lru_cache(maxsize=64)
def _noise(plan: BufferedToeplitz) -> NodeNoise:
    assert isinstance(plan.budget, Concentrated)
    return plan.budget.noise_for(plan.squared_sensitivity)


class BltCounter(DrawingCounter):
    """Keeps the history, the buffers and the running sum of the noise, which are as secret as the noise itself."""

    def __init__(self, plan: BufferedToeplitz, nodes: NodeSource) -> None:
        """Begin before the first leaf."""
        super().__init__(plan, nodes)
        self._fine = plan.fine_bits
        self._factors, self._shifts = _columns(plan.shape.dyadic)
        self._buffers = np.zeros((len(plan.shape.dyadic), plan.dimension), dtype=np.int64)
        self._scaled: NDArray[np.int64] | None = None
        self._total = np.zeros(plan.dimension, dtype=np.int64)

    def feedback(self) -> NDArray[np.int64]:
        """g_t: what the buffers take from the next fresh noise, in fine units, int64 (dimension,)."""
        return np.asarray(np.add.reduce(self._products()[0], axis=0) >> _GUARD_BITS)

    def push(self, correlated: NDArray[np.int64]) -> None:
        """Fold y_t into the buffers and the running sum."""
        self._buffers -= self._products()[1]
        self._buffers += correlated << _GUARD_BITS
        self._scaled = None
        self._total += correlated

    def _products(self) -> NDArray[np.int64]:
        """The buffers times their weights, and times their gaps.

        They are kept only from `feedback` to `push`, because they take twice the memory of the buffers.
        """
        if self._scaled is None:
            self._scaled = _scaled(self._buffers, self._factors, self._shifts)
        return self._scaled

    def _wanted(self, leaves: NDArray[np.int64], histories: Sequence[bytes]) -> Wanted:
        return Wanted([(self.leaves + row,) for row in range(len(leaves))], histories)

    def _receive(self, leaves: NDArray[np.int64], drawn: NDArray[np.int64]) -> None:
        for fresh in drawn:
            self.push(fresh - self.feedback())

    @staticmethod
    def _receive_together(
        counters: Sequence[DrawingCounter], leaves: Sequence[NDArray[np.int64]], drawn: Sequence[NDArray[np.int64]]
    ) -> None:
        of = [counter for counter in counters if isinstance(counter, BltCounter)]
        fresh = np.concatenate(drawn)
        buffers = np.stack([counter._buffers for counter in of])
        by_weights, by_gaps = _scaled(buffers, of[0]._factors[:, None], of[0]._shifts[:, None])
        correlated = fresh - (np.add.reduce(by_weights, axis=1) >> _GUARD_BITS)
        buffers -= by_gaps
        buffers += (correlated << _GUARD_BITS)[:, None]
        for counter, held, more in zip(of, buffers, correlated, strict=True):
            counter._buffers[...] = held
            counter._scaled = None
            counter._total += more

    def _noise(self) -> NDArray[np.int64]:
        return self._rounded(self._total)

    def _rounded(self, fine: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._fine:
            return fine.copy()
        return np.asarray((fine + (1 << (self._fine - 1))) >> self._fine)

    def _dump_extra(self) -> bytes:
        return self._history + self._buffers.astype("<i8").tobytes() + self._total.astype("<i8").tobytes()

    def _load_extra(self, extra: bytes) -> None:
        rows = len(self._buffers) + 1
        size = HISTORY_BYTES + 8 * rows * self.plan.dimension
        if len(extra) != size:
            raise BadState(f"counter state: expected {size} bytes of history and buffers, got {len(extra)}")
        self._history = extra[:HISTORY_BYTES]
        held = (
            np.frombuffer(extra, dtype="<i8", offset=HISTORY_BYTES).astype(np.int64).reshape(rows, self.plan.dimension)
        )
        self._buffers, self._total = held[:-1].copy(), held[-1].copy()
        self._scaled = None


def _columns(dyadic: tuple[tuple[tuple[int, int], ...], ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Weights and gaps of the buffers: mantissas, and what is left to shift after 31 bits, int64 (2, buffers, 1)."""
    pairs = np.array(dyadic, dtype=np.int64).transpose(1, 0, 2)
    return np.ascontiguousarray(pairs[..., :1]), np.ascontiguousarray(pairs[..., 1:]) - _HALF_BITS


def _scaled(values: NDArray[np.int64], mantissas: NDArray[np.int64], shifts: NDArray[np.int64]) -> NDArray[np.int64]:
    """floor(values * mantissa / 2^(31 + shift)), exact: both products stay below 2^62 for |values| < 2^62.

    Args:
        values: (buffers, dimension), or (counters, buffers, dimension).
        mantissas, shifts: (2, buffers, 1), or (2, 1, buffers, 1).

    Returns:
        int64, (2, *shape of the values): values by their weights, and by their gaps.
    """
    scaled = (values & _LOW) * mantissas
    scaled >>= _HALF_BITS
    scaled += (values >> _HALF_BITS) * mantissas
    scaled >>= shifts
    return scaled
