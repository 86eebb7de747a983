"""What a row of a benchmark says of its target."""

import pytest

from hushstream.replay.bench.rows import at_least, at_most, figure


def test_a_row_holds_the_median_of_its_rounds() -> None:
    assert figure("rate", [9.0, 1.0, 2.0], "events/s").value == 2.0


def test_a_figure_without_a_target_is_neither_reached_nor_missed() -> None:
    assert figure("rate", [1.0], "events/s").reached is None


@pytest.mark.parametrize(("value", "reached"), [(3.4, False), (3.5, True), (3.6, True)])
def test_a_lower_bound_is_reached_from_the_bound_on(value: float, reached: bool) -> None:
    row = at_least("ratio", [value], "x", 3.5)
    assert (row.target, row.reached) == ("at least 3.5", reached)


@pytest.mark.parametrize(("value", "reached"), [(99.0, True), (100.0, True), (101.0, False)])
def test_an_upper_bound_is_reached_up_to_the_bound(value: float, reached: bool) -> None:
    row = at_most("wait", [value], "ms", 100.0)
    assert (row.target, row.reached) == ("at most 100", reached)
