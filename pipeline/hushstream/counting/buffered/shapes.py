"""Weights and decays of the BLT counters, and the closed forms that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.errors import BadPlan
from hushstream.privacy.conversions import context, to_fraction

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
