"""From budgets to noise, and back to epsilon."""

import math
from fractions import Fraction

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant

from hushstream.counting import BadPlan, BufferedToeplitz, Concentrated, NegativeDigitTree, PureEpsilon
from hushstream.counting.blt_shapes import lower_bound
from hushstream.counting.calibration import epsilon_of_rho
from hushstream.privacy.errors import PrivacyError


@pytest.mark.parametrize("rho", [0.001, 0.02, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_epsilon_of_rho_is_that_of_dp_accounting(rho: float, delta: float) -> None:
    """Google's accountant on the same whole orders."""
    orders = [*range(2, 600), *range(600, 30_000, 50)]
    accountant = RdpAccountant(orders)
    accountant.compose(dp_accounting.GaussianDpEvent(math.sqrt(1 / (2 * rho))))
    expected = accountant.get_epsilon(delta)
    assert epsilon_of_rho(Fraction(rho), delta) / 1e6 == pytest.approx(expected, rel=2e-3, abs=2e-6)


@pytest.mark.parametrize("epsilon", ["0.1", 1, 8])
def test_the_rho_for_an_epsilon_is_the_largest(epsilon: float | str) -> None:
    budget = Concentrated.for_epsilon(epsilon, 1e-6)
    target = int(Fraction(epsilon) * 1_000_000)
    assert epsilon_of_rho(Fraction(budget.rho), 1e-6) <= target
    assert epsilon_of_rho(Fraction(budget.rho) + Fraction(1, 1_000_000), 1e-6) > target
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


def test_roundings_cost_the_toeplitz_counter_next_to_nothing() -> None:
    for dimension in (1, 25, 2500):
        plan = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), dimension=dimension)
        exact = float(plan.shape.squared_norm(plan.horizon)) * 4.0**plan.fine_bits
        assert exact < plan.squared_sensitivity < 1.005 * exact
