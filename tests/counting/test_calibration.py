"""From budgets to noise, and back to epsilon."""

import math
from collections.abc import Sequence
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from hushstream.counting import BadPlan, BufferedToeplitz, Concentrated, NegativeDigitTree, PureEpsilon
from hushstream.counting.buffered.blt import BltCounter
from hushstream.counting.buffered.shapes import lower_bound, shape_for
from hushstream.privacy.amounts import delta_units, epsilon_micro
from hushstream.privacy.conversions import rho_to_epsilon_micro
from hushstream.privacy.errors import PrivacyError


@pytest.mark.parametrize("rho", [0.001, 0.02, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_epsilon_of_rho_is_that_of_dp_accounting(rho: float, delta: float) -> None:
    """Google's accountant on the same whole orders."""
    orders = [*range(2, 600), *range(600, 30_000, 50)]
    accountant = RdpAccountant(orders)
    accountant.compose(dp_accounting.GaussianDpEvent(math.sqrt(1 / (2 * rho))))
    expected = accountant.get_epsilon(delta)
    assert rho_to_epsilon_micro(epsilon_micro(rho), delta_units(delta)) / 1e6 == pytest.approx(
        expected, rel=2e-3, abs=2e-6
    )


@pytest.mark.parametrize("epsilon", ["0.1", 1, 8])
def test_the_rho_for_an_epsilon_is_the_largest(epsilon: float | str) -> None:
    budget = Concentrated.for_epsilon(epsilon, 1e-6)
    target = int(Fraction(epsilon) * 1_000_000)
    rho, units = epsilon_micro(budget.rho), delta_units(1e-6)
    assert rho_to_epsilon_micro(rho, units) <= target < rho_to_epsilon_micro(rho + 1, units)
    plan = NegativeDigitTree(budget=budget, horizon=1000)
    assert plan.guarantee().cost.epsilon_micro <= target


def test_an_epsilon_that_no_rho_gives_is_refused() -> None:
    with pytest.raises(BadPlan, match="some rho"):
        Concentrated.for_epsilon("0.000001", 1e-12)


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan, "x", None, True])
def test_an_impossible_epsilon_is_refused(epsilon: object) -> None:
    with pytest.raises((BadPlan, PrivacyError), match="expected"):
        PureEpsilon(epsilon)  # type: ignore[arg-type]
    with pytest.raises((BadPlan, PrivacyError), match="expected"):
        Concentrated(epsilon, 1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [0, 1, 2, -1e-6, math.nan])
def test_an_impossible_delta_is_refused(delta: float) -> None:
    with pytest.raises((BadPlan, PrivacyError), match="expected"):
        Concentrated(0.5, delta)


def test_noise_that_does_not_fit_is_refused() -> None:
    with pytest.raises((BadPlan, PrivacyError), match="expected"):
        NegativeDigitTree(budget=PureEpsilon(1), sensitivity=1 << 50)
    with pytest.raises(BadPlan, match=r"2\^37"):
        BufferedToeplitz(budget=Concentrated(0.000_001, 1e-6))


@pytest.mark.parametrize("exponent", [6, 8, 10, 12, 14, 17, 20, 22])
def test_the_toeplitz_counter_is_within_a_tenth_of_the_lower_bound(exponent: int) -> None:
    """Root mean square error in units of Delta_2 / sqrt(2 rho), roundings and lattice included.

    No factorisation is below ||A||_* / T (Henzinger, Upadhyay, Upadhyay 2023); see `blt_shapes.lower_bound`.
    """
    horizon = 1 << exponent
    plan = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), horizon=horizon, dimension=25, sensitivity=1 << 10)
    assert 1 <= plan.rmse() / plan.sensitivity / lower_bound(horizon) <= 1.10


@pytest.mark.parametrize(("exponent", "bound"), [(10, 2.91), (14, 3.79), (20, 5.11)])
def test_the_lower_bound_is_the_published_one(exponent: int, bound: float) -> None:
    assert lower_bound(1 << exponent) == pytest.approx(bound, abs=0.005)


@pytest.mark.parametrize("horizon", [300, 1 << 14, 1 << 30])
def test_roundings_move_the_toeplitz_counters_noise_by_no_more_than_is_paid_for(horizon: int) -> None:
    """The proof's step: leaves that differ by v at j need noise that differs by c_k v, but for the bound e."""
    plan = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), horizon=horizon, dimension=400)
    steps, change = 300, 1 << plan.fine_bits
    correlated = np.random.default_rng(3).integers(-(1 << 33), 1 << 33, (steps, 400))
    first, second = BltCounter(plan, NoNodes()), BltCounter(plan, NoNodes())
    exact = plan.shape.column(steps) * change
    for step in range(steps):
        moved = correlated[step] + (change if step == 0 else 0)
        fresh = correlated[step] + first.feedback(), moved + second.feedback()
        assert np.abs(fresh[1] - fresh[0] - exact[step]).max() <= float(plan.rounding) + 1e-3
        first.push(correlated[step])
        second.push(moved)


def test_every_weight_fits_the_whole_number_arithmetic_of_the_toeplitz_counter() -> None:
    """Gaps above one half once overflowed a product: rarely, and by some thousand fine units."""
    for exponent in (10, 14, 20, 24, 30):
        for pair in shape_for(1 << exponent).dyadic:
            for mantissa, bits in pair:
                assert 0 < mantissa < 1 << 31
                assert bits >= 31


class NoNodes:
    """The noise is given by hand: nothing is drawn."""

    def draw(self, blocks: Sequence[tuple[int, ...]], nodes: int) -> np.ndarray:
        raise AssertionError("expected no draw")

    def draw_over(self, places: Sequence[tuple[int, ...]], histories: Sequence[bytes]) -> np.ndarray:
        raise AssertionError("expected no draw")

    def histories(self, before: bytes, leaves: np.ndarray, origin: bytes) -> list[bytes]:
        raise AssertionError("expected no leaf")


def test_the_toeplitz_counter_says_on_what_its_guarantee_rests() -> None:
    promise = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), horizon=100).guarantee()
    assert any("not integer" in condition for condition in promise.conditions)
    digits = NegativeDigitTree(budget=Concentrated(0.5, 1e-6), horizon=100).guarantee()
    assert not any("not integer" in condition for condition in digits.conditions)


def test_roundings_cost_the_toeplitz_counter_next_to_nothing() -> None:
    for dimension in (1, 25, 2500):
        plan = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), dimension=dimension)
        exact = float(plan.shape.squared_norm(plan.horizon)) * 4.0**plan.fine_bits
        assert exact < plan.squared_sensitivity < 1.005 * exact
