"""Every figure of random configurations is what formulas of our own make of it, for all systems.

`harness/configurations.py` draws them, `harness/formulas.py` has the formulas, `harness/figures.py` puts both side by
side. `make test` takes a sample of each system; `make accountant` (or `pytest tests/accountant --configurations 500`)
takes 500 of each.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest
from dp_accounting.rdp import rdp_privacy_accountant

HARNESS = Path(__file__).parent / "harness"
SYSTEMS = ("p2b", "colin", "pdap", "pdol", "bgt")
AT_ONCE = 20
"""Configurations of one test: the sample of `make test`."""
ACCEPTED = 0.7
"""A draw that is mostly refused would test refusals: at least so many have figures to compare."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first" in metafunc.fixturenames:
        count = metafunc.config.getoption("--configurations")
        metafunc.parametrize("first", range(0, count, AT_ONCE))


def accepted(accountant: Any, system: str, first: int = 0) -> list[Any]:
    """Of each configuration that was accepted: what was drawn, and its figures."""
    found = accountant.figures.compared(system, first, AT_ONCE)
    return [pair for pair in found if not isinstance(pair[1], accountant.figures.Refused)]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_figure_of_a_guarantee_is_that_of_an_independent_formula(accountant, system, first):
    found = accepted(accountant, system, first)
    wrong = [
        (drawn.system, drawn.number, figure, drawn.values)
        for drawn, figures in found
        for figure in figures
        if not figure.right
    ]
    assert not wrong, wrong[0]
    assert len(found) >= ACCEPTED * AT_ONCE
    assert min(len(figures) for _, figures in found) >= 4


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_sample_takes_every_choice_that_a_price_depends_on(accountant, system):
    wanted = accountant.configurations.CHOICES[system]
    taken = {name: {drawn.chosen[name] for drawn, _ in accepted(accountant, system)} for name in wanted}
    assert taken == {name: set(values) for name, values in wanted.items()}


def test_budgets_of_the_sample_are_exhausted_unused_and_refused(accountant):
    """A filter that admits all or nothing compares no limit."""
    fits, refused, rounds = set(), 0, set()
    for system in ("colin", "pdol", "bgt"):
        refused += AT_ONCE - len(accepted(accountant, system))
        for drawn, figures in accepted(accountant, system):
            if drawn.values["privacy"]["lifetime"] is not None:
                found = {figure.name: figure.got for figure in figures}
                fits |= {found[name] < found["planned"] for name in found if name.endswith("that fit")}
                rounds |= {found[name] for name in found if name == "rounds that fit"}
    assert fits == {True, False}
    assert refused
    assert min(rounds) < 3, "a budget that ends within the first epoch"
    assert any(fit > 3 and fit % 3 for fit in rounds), "and one that ends within a later one"


def test_the_formulas_call_nothing_of_the_product():
    tree = ast.parse((HARNESS / "formulas.py").read_text("utf-8"))
    imported = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    ]
    assert imported
    assert not [name for name in imported if "hushstream" in name]


@pytest.mark.parametrize("rho", [1e-4, 0.0284, 0.2109, 1.67, 12.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_the_formula_for_epsilon_of_a_rho_is_that_of_dp_accounting(accountant, rho, delta):
    formulas = accountant.formulas
    orders = range(2, 3_000)
    theirs, _ = rdp_privacy_accountant.compute_epsilon(orders, [rho * order for order in orders], delta)
    ours = formulas.epsilon_of_rho(round(rho * formulas.MICRO), math.ceil(formulas.decimal(delta) * formulas.UNITS))
    assert ours / formulas.MICRO == pytest.approx(theirs, rel=1e-6, abs=2e-6)


def test_the_figures_of_the_published_table_of_rhos_come_out(accountant):
    """Epsilon 10, 3 and 1 at half of delta 1e-5."""
    formulas = accountant.formulas
    half = math.ceil(formulas.decimal(1e-5) * formulas.UNITS) // 2
    found = [formulas.rho_of_epsilon(epsilon * formulas.MICRO, half) / formulas.MICRO for epsilon in (10, 3, 1)]
    assert found == pytest.approx([1.670, 0.2109, 0.0284], abs=5e-4)


@pytest.mark.parametrize(("horizon", "base"), [(1, 2), (10, 2), (100, 7), (1024, 13), (4, 4)])
def test_the_formula_for_levels_reaches_every_leaf_and_needs_each(accountant, horizon, base):
    """By writing all numbers that so many digits make."""
    levels = accountant.formulas.tree_levels(base, horizon)
    reach = []
    for digits in (levels - 1, levels):
        made = {0}
        for place in range(digits):
            made = {one + digit * base**place for one in made for digit in range(-((base - 1) // 2), base // 2 + 1)}
        reach.append(set(range(horizon + 1)) <= made)
    assert reach == [False, True]
