"""What Google's dp-accounting makes of the same mechanisms: privacy loss distributions (PLD) and Renyi divergences.

PLDs are taken by their optimistic estimate: losses are rounded down and truncated tails dropped, so what comes out is a
*lower* bound of the true delta. A claim below it is wrong; a claim that is far above it is slack. Continuous Laplace
noise stands for the discrete one where a step is below a ten-thousandth of its shift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy import stats

FINEST = 10_000
GRID = 4_000
"""Into so many steps the loss is cut, from 0 to the claimed epsilon."""

_FROM_BELOW = {"pessimistic_estimate": False, "use_connect_dots": False}
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Laplace:
    """``count`` sums that each move by ``shift``, under discrete Laplace noise of ``scale``, all ``times`` over.

    They move at all with the chance ``kept``: one coin for the ``count`` sums.
    """

    scale: float
    shift: int
    count: int = 1
    kept: float = 1.0
    times: int = 1

    def distribution(self, grid: float) -> Any:
        if self.kept < 1:
            return _of_losses(*self._sampled(), grid).self_compose(self.times)
        of = pld.from_laplace_mechanism if self.shift > FINEST else pld.from_discrete_laplace_mechanism
        parameter = self.scale if self.shift > FINEST else 1 / self.scale
        one = of(parameter, self.shift, value_discretization_interval=grid, **_FROM_BELOW)
        return one.self_compose(self.count * self.times)

    def _sampled(self) -> tuple[Float64, Float64]:
        """The coin is thrown once, before all sums: both laws over the losses, which are whole multiples of 1/scale."""
        tail = np.arange(math.ceil(45 * self.scale) + self.shift + 1)
        places = np.concatenate([-tail[:0:-1], tail])
        law = np.exp(-np.abs(places) / self.scale)
        steps = np.abs(places) - np.abs(places - self.shift)
        one = np.bincount(steps + self.shift, weights=law / law.sum(), minlength=2 * self.shift + 1)
        null = one
        for _ in range(self.count - 1):
            null = np.convolve(null, one)
        losses = (np.arange(len(null)) - self.count * self.shift) / self.scale
        return null, null * (1 - self.kept + self.kept * np.exp(losses))


@dataclass(frozen=True, slots=True)
class Both:
    """Two independent laws that one person moves together."""

    one: Laplace
    other: Laplace

    def distribution(self, grid: float) -> Any:
        return self.one.distribution(grid).compose(self.other.distribution(grid))


@dataclass(frozen=True)
class Gaussian:
    """Draws that together move by ``distance`` standard deviations in L2, ``count`` times."""

    distance: float
    count: int = 1

    def distribution(self, grid: float) -> Any:
        one = pld.from_gaussian_mechanism(1.0, self.distance, value_discretization_interval=grid, **_FROM_BELOW)
        return one.self_compose(self.count)


@dataclass(frozen=True)
class KNorm:
    """``count`` vectors of ``dimension`` numbers that each move by ``distance`` scales in L2, under K-norm noise.

    Both densities are e^-|x|; they are summed over the distance along the shift and the one across it.
    """

    dimension: int
    distance: float
    count: int = 1

    def distribution(self, grid: float) -> Any:
        reach, cells = 20.0 + 2.0 * self.dimension, 700
        along = np.linspace(-reach, reach + self.distance, cells)
        across = np.linspace(0, reach, cells + 1)[1:] if self.dimension > 1 else np.zeros(1)
        weights = (self.dimension - 2) * np.log(across) if self.dimension > 1 else np.zeros(1)
        here, moved = (np.hypot(along[:, None] - shift, across) for shift in (0.0, self.distance))
        highest = (weights - here).max()
        null, other = (np.exp(weights - lengths - highest).ravel() for lengths in (here, moved))
        bins = np.round((here - moved).ravel() / (grid / 2)).astype(np.int64)
        bins -= bins.min()
        laws = [np.bincount(bins, weights=law / law.sum()) for law in (null, other)]
        return _of_losses(laws[0], laws[1], grid).self_compose(self.count)


@dataclass(frozen=True)
class Coin:
    """One of two answers, the likelier with ``chance``, whichever way round."""

    chance: float
    count: int = 1

    def distribution(self, grid: float) -> Any:
        laws = np.array([self.chance, 1 - self.chance]), np.array([1 - self.chance, self.chance])
        return _of_losses(*laws, grid).self_compose(self.count)


@dataclass(frozen=True)
class Crowd:
    """A count of sampled reports that shows from a threshold on: with the unit's ``slots`` among ``others``, or not."""

    threshold: int
    kept: float
    others: int
    slots: int = 1

    def distribution(self, grid: float) -> Any:
        counts = np.arange(self.others + self.slots + 1)
        laws = [stats.binom.pmf(counts, self.others + more, self.kept) for more in (0, self.slots)]
        shown = [np.concatenate([[law[: self.threshold].sum()], law[self.threshold :]]) for law in laws]
        return _of_losses(*shown, grid)


@dataclass(frozen=True)
class Shown:
    """A report that is seen as it is, if a coin kept it."""

    kept: float

    def distribution(self, grid: float) -> Any:
        return _of_losses(np.array([1.0, 0.0]), np.array([1 - self.kept, self.kept]), grid)


Law = Laplace | Both | Gaussian | KNorm | Coin | Crowd | Shown


def _of_losses(null: Float64, moved: Float64, grid: float) -> Any:
    """The PLD of two laws over the same outcomes, in both directions."""
    lower, upper = ({place: math.log(p) for place, p in enumerate(law.tolist()) if p > 0} for law in (null, moved))
    return pld.from_two_probability_mass_functions(
        lower, upper, pessimistic_estimate=False, value_discretization_interval=grid, symmetric=False
    )


@cache
def _composed(law: Law, grid: float) -> Any:
    return law.distribution(grid)


def least_delta(law: Law, epsilon: float, grid: float) -> float:
    """A lower bound of the true delta at ``epsilon``."""
    return float(_composed(law, grid).get_delta_for_epsilon(epsilon))


def renyi_epsilon(law: Law, delta: float, orders: Sequence[int]) -> float:
    """Epsilon of the composition by Renyi divergences at the best of these orders: an upper bound of the true one."""
    accountant = RdpAccountant(orders=list(orders))
    if isinstance(law, Laplace):
        accountant.compose(dp_accounting.LaplaceDpEvent(law.scale / law.shift), law.count)
    elif isinstance(law, Gaussian):
        accountant.compose(dp_accounting.GaussianDpEvent(1 / law.distance), law.count)
    else:
        raise TypeError(f"expected Laplace or Gaussian noise, got {law}")
    return float(accountant.get_epsilon(delta))
