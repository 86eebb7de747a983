"""Which release is the more exact one, and which tree is the best for a horizon."""

import numpy as np
import pytest

from hushstream.counting import (
    BadPlan,
    BinaryTree,
    Concentrated,
    NegativeDigitTree,
    PureEpsilon,
    best_tree,
    choose_release,
    counter_rmse,
    fresh_rmse,
)
from hushstream.privacy.errors import BadNoise
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, discrete_laplace, laplace_scale


def test_a_thousand_windows_cost_less_than_half_of_fresh_noise() -> None:
    assert counter_rmse(1, 1000, 1024) < 0.5 * fresh_rmse(1, 1000)


def test_the_error_of_fresh_noise_is_the_closed_form(key: Key, address: NoiseAddress) -> None:
    """4,000 runs of 100 windows: standard error 1.2 %, so 6 % are five of them (false alarm below 1e-6)."""
    noise = discrete_laplace(KeyedStream(key, address), *laplace_scale(1, 3), 400_000).reshape(4000, 100)
    assert np.sqrt(np.mean(np.cumsum(noise, axis=1) ** 2.0)) == pytest.approx(fresh_rmse(1, 100, 3), rel=0.06)


def test_few_windows_have_fresh_noise_and_many_a_counter() -> None:
    choices = [choose_release(1, windows, 1024) for windows in (1, 10, 100, 1000)]
    assert choices == ["fresh", "fresh", "fresh", "counter"]
    assert choose_release(1, 100) == "fresh"
    assert choose_release(1, 10_000) == "counter"


def test_the_choice_changes_once_where_the_errors_cross() -> None:
    choices = [choose_release("0.5", windows, 2000, 256) for windows in range(1, 2001, 97)]
    first = choices.index("counter")
    assert set(choices[:first]) == {"fresh"}
    assert set(choices[first:]) == {"counter"}
    windows = range(1, 2001, 97)[first]
    assert counter_rmse("0.5", windows, 2000, 256) < fresh_rmse("0.5", windows, 256)


def test_equal_errors_keep_fresh_noise() -> None:
    assert counter_rmse(1, 8, 8) == fresh_rmse(1, 8)
    assert choose_release(1, 8, 8) == "fresh"


def test_the_best_tree_is_no_worse_than_any_other() -> None:
    for budget in (PureEpsilon(1), Concentrated(0.5, 1e-6)):
        for horizon in (1, 5, 31, 100, 1024, 1 << 20):
            best = best_tree(budget, horizon).rmse()
            for base in (2, 3, 5, 8, 15, 19, 33, 62):
                assert best <= NegativeDigitTree(budget=budget, horizon=horizon, base=base).rmse()


def test_the_negative_digit_tree_is_below_two_fifths_of_the_binary_one() -> None:
    million = 1 << 20
    default, binary = NegativeDigitTree(budget=PureEpsilon(1)), BinaryTree(budget=PureEpsilon(1))
    assert default.rmse(million) < 0.40 * binary.rmse(million)
    assert (round(default.rmse(million), 1), round(binary.rmse(million), 1)) == (49.4, 138.6)
    small = best_tree(PureEpsilon(1), million)
    assert small.rmse() < 0.40 * BinaryTree(budget=PureEpsilon(1), horizon=million).rmse()


@pytest.mark.parametrize(
    ("epsilon", "windows", "horizon", "sensitivity"),
    [(0, 10, 100, 1), (1, 0, 100, 1), (1, 101, 100, 1), (1, 10, 0, 1), (1, 10, 100, 0), (1, 1.5, 100, 1)],
)
def test_impossible_configurations_are_refused(epsilon: int, windows: int, horizon: int, sensitivity: int) -> None:
    with pytest.raises((BadPlan, BadNoise), match="expected"):
        choose_release(epsilon, windows, horizon, sensitivity)
