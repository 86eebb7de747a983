"""Sensitivity and price of each kind of sum, with the proofs for the three kinds of slots.

Neighbours differ in the content of one user's slots: any content, or null. Their existence is public. Everything is
whole numbers on the lattice of 2^-20, so the bounds below hold exactly and not up to rounding.

*A (items).* A slot with n items, weight c and residuals v moves counts by c at each of its items and residual sums by
v. The collector takes it only if n c^2 + sum v^2 <= (C 2^20)^2, in integers: Delta_A = C 2^20, for counts and sums
together.

*B (pairs).* A slot holds z with sum z^2 <= (C 2^20)^2 and moves cell (i, j), i > j, by z_i z_j. Since
(sum z^2)^2 = sum_i z_i^4 + 2 sum_(i>j) z_i^2 z_j^2,

    ||lower(z z^T)||_2^2 = ((sum z^2)^2 - sum z^4) / 2 <= (sum z^2)^2 / 2:   Delta_B = C^2 2^40 / sqrt(2).

The bound is approached by many equal z. Each cell is published once. The upper triangle would be a copy with the same
noise; with fresh noise it would double the price, and Delta_B would be C^2.

*C (factors).* A slot holds y with sum y^2 <= (C_c 2^20)^2 and p with sum p^2 <= 2^40, and moves cell (i, k) by
y_i p_k / 2^20 rounded toward zero. Rounding toward zero lengthens no entry, so the Frobenius norm is at most
||y|| ||p|| / 2^20 <= C_c 2^20 = Delta_C. That is one bound for the whole matrix; a bound for each row would be
sqrt(n) times as large.

*Noise* discrete Gaussian of parameter Delta^2 / (2 rho) in each cell gives rho-zCDP (Canonne, Kamath, Steinke 2020,
Theorem 4). Rounds compose adaptively: what a user sends later depends on their own ratings and on earlier releases
alone, and given equal earlier releases the neighbours differ in that one slot again. So the transcript is
(rho_A + rho_B + rho_C)-zCDP for a user against null (Bun, Steinke 2016, Lemma 2.3). A last round that asks for kind A
again has Delta_A and pays rho_C. Nulls, refused slots and the padding take part in the public number of slots alone.
The test for factors, shrinkage, features and biases read releases: post-processing. A device that solves its own
offset and factors publishes nothing.

*One user's slots against other slots of theirs*: they reach each other through null, so sums move by at most 2 Delta
and the price is 4 rho. (For kind B alone, ||z z^T - w w^T||_F^2 = |z|^4 + |w|^4 - 2 (z w)^2 <= 2 C^4, half of which is
in the strict lower triangle at most: 2 rho_B would do. The 4 rho that is printed is on the safe side by 2 rho_B.)
"""

from __future__ import annotations

from functools import lru_cache

from hushstream.privacy.amounts import MICRO, Cost, delta_units, epsilon_micro
from hushstream.privacy.filters import ConcentratedFilter
from hushstream.systems.bgt.configuration import KINDS, UNIT, BgtConfig, Kind, ReleaseConfig
from hushstream.systems.bgt.errors import BgtError


def squared_clip(kind: Kind, release: ReleaseConfig) -> int:
    """Largest sum of squares of a slot of this kind, on the lattice; a slot with a larger one is refused."""
    clip = release.factor_clip if kind == "factors" else release.clip
    # Cut to a whole number, so the norm is never above the clip that the guarantee prints.
    return int((clip * UNIT) ** 2)


def squared_sensitivity(kind: Kind, release: ReleaseConfig) -> int:
    """Delta^2 of a slot against null, in the units of the released sums; see the module's proofs."""
    square = squared_clip(kind, release)
    return -(-square * square // 2) if kind == "pairs" else square


@lru_cache(maxsize=256)
def total_rho_micro(epsilon: float, delta: float) -> int:
    """The largest rho in millionths within (epsilon, delta), at half of delta."""
    return ConcentratedFilter.for_cost(Cost(epsilon_micro(epsilon), delta_units(delta))).rho_micro


def rho_micro(number: int, release: ReleaseConfig) -> int:
    """The price of a round's slot, in millionths of rho, rounded down so that all rounds fit.

    Raises:
        BgtError: there is no such round, or the releases have no noise.
    """
    if release.noise == "exact" or not 0 <= number < len(KINDS):
        raise BgtError(f"rho: expected a round with noise from 0 to {len(KINDS) - 1}, got {number}")
    return max(1, int(total_rho_micro(release.epsilon, release.delta) * release.shares[number]))


def variance_of(number: int, kind: Kind, config: BgtConfig) -> tuple[int, int]:
    """The parameter Delta^2 / (2 rho) of the noise on each sum of a round, as (numerator, denominator)."""
    return squared_sensitivity(kind, config.release) * MICRO, 2 * rho_micro(number, config.release)


def deviation_of(number: int, kind: Kind, config: BgtConfig) -> float:
    """Standard deviation of a round's noise, in units of ratings (of their products in kind B); 0 without noise."""
    if config.release.noise == "exact":
        return 0.0
    top, bottom = variance_of(number, kind, config)
    return float((top / bottom) ** 0.5 / UNIT ** (2 if kind == "pairs" else 1))
