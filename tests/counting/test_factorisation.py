"""A = L R for every counter, that L is what the code computes, and that the noise pays for every column of R."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tests.counting.conftest import released

from hushstream.counting import (
    BinaryTree,
    BlockCounters,
    BlockPlan,
    BufferedToeplitz,
    Concentrated,
    NegativeDigitTree,
    Plan,
    PureEpsilon,
)
from hushstream.counting.digits import levels_for, mean_nodes

LEAVES = 41


class UnitNodes:
    """A source in which the i-th node that is drawn has ``size`` in coordinate i and 0 elsewhere."""

    def __init__(self, coordinates: int, size: int) -> None:
        self.coordinates = coordinates
        self.size = size
        self.seen: dict[tuple[int, ...], int] = {}
        self.draws = 0

    def draw(self, blocks: Sequence[tuple[int, ...]], nodes: int) -> np.ndarray:
        drawn = np.zeros((len(blocks), nodes, self.coordinates), dtype=np.int64)
        for row, block in enumerate(blocks):
            for place in range(nodes):
                number = self.seen.setdefault((*block, place), len(self.seen))
                drawn[row, place, number] = self.size
                self.draws += 1
        return drawn

    def draw_over(self, places: Sequence[tuple[int, ...]], histories: Sequence[bytes]) -> np.ndarray:
        drawn = np.zeros((len(places), self.coordinates), dtype=np.int64)
        assert len(histories) == len(places)
        for row, place in enumerate(places):
            drawn[row, self.seen.setdefault(place, len(self.seen))] = self.size
            self.draws += 1
        return drawn

    def histories(self, before: bytes, leaves: np.ndarray, origin: bytes) -> list[bytes]:
        return [before] * len(leaves)


def plans(budget: PureEpsilon | Concentrated, horizon: int) -> list[Plan]:
    trees: list[Plan] = [NegativeDigitTree(budget=budget, horizon=horizon, base=base) for base in (2, 3, 4, 5, 7, 15)]
    more: list[Plan] = [BinaryTree(budget=budget, horizon=horizon)]
    if isinstance(budget, Concentrated):
        more.append(BufferedToeplitz(budget=budget, horizon=horizon))
    return trees + more


PURE, ZCDP = PureEpsilon("0.7"), Concentrated("0.3", 1e-6)
EVERY = [pytest.param(plan, id=f"{plan.mechanism}-{plan.levels}-{plan.budget.norm}-{plan.horizon}")
         for budget in (PURE, ZCDP) for horizon in (LEAVES, 1 << 12) for plan in plans(budget, horizon)]  # fmt: skip


@pytest.mark.parametrize("plan", EVERY)
def test_prefix_sums_are_left_times_right(plan):
    for leaves in (1, 2, 7, LEAVES):
        parts = plan.factorisation(leaves)
        assert np.allclose(parts.left @ parts.right, np.tril(np.ones((leaves, leaves))), atol=1e-9)


@pytest.mark.parametrize("plan", EVERY)
def test_the_noise_pays_for_every_leaf(plan):
    """Exhaustive over leaves: scale >= ||R_j||_1 Delta_1/eps, or variance >= ||R_j||_2^2 Delta_2^2/(2 rho)."""
    right = plan.factorisation(LEAVES).right
    for sensitivity in (1, 9):
        priced = replace(plan, sensitivity=sensitivity)
        law = Fraction(priced.noise.numerator, priced.noise.denominator)
        if isinstance(plan.budget, PureEpsilon):
            needed = [np.abs(column).sum() * sensitivity / 0.7 for column in right.T]
        else:
            fine = 4.0**priced.fine_bits if isinstance(priced, BufferedToeplitz) else 1.0
            needed = [(column @ column) * sensitivity**2 / 0.6 * fine for column in right.T]
        assert max(needed) <= law * (1 + 1e-12)
        if plan.horizon == LEAVES:
            # And for the horizon that it is calibrated to, not for much more: a bound that is loose wastes error.
            assert law <= max(needed) * (2 if isinstance(plan.budget, PureEpsilon) else 1.7)


@pytest.mark.parametrize("plan", [plan for plan in plans(PURE, LEAVES) + plans(ZCDP, LEAVES) if plan.levels > 1])
def test_a_forgotten_level_factor_would_be_found(plan, monkeypatch):
    forgetful = property(lambda self: self.budget.node_noise(self.levels - 1, self.sensitivity, self.dimension))
    monkeypatch.setattr(NegativeDigitTree, "noise", forgetful)
    with pytest.raises(AssertionError, match="max"):
        test_the_noise_pays_for_every_leaf(plan)


@pytest.mark.parametrize("plan", EVERY)
def test_the_running_code_computes_left(plan):
    size, unit = 1 << 30, float(1 << 30)
    if isinstance(plan, BufferedToeplitz):
        plan = replace(plan, sensitivity=1 << 20)
        size, unit = 1 << 40, 2.0 ** (40 - plan.fine_bits)
    wide = replace(plan, dimension=4096)
    source = UnitNodes(wide.dimension, size)
    releases = released(wide.open_on(source), np.zeros((LEAVES, wide.dimension), dtype=np.int64))
    computed = releases / unit
    expected = plan.factorisation(LEAVES).left
    assert np.allclose(by_column(computed), by_column(expected), atol=1e-6)


def by_column(left: np.ndarray) -> np.ndarray:
    """Columns that are not zero, in an order that does not depend on how nodes are numbered."""
    kept = left[:, np.abs(left).max(axis=0) > 1e-6].round(6) + 0.0
    return kept[:, np.lexsort(kept)]


@pytest.mark.parametrize("plan", EVERY)
def test_the_closed_form_of_the_error_is_that_of_left(plan):
    for leaves in (1, 5, LEAVES):
        left = plan.factorisation(leaves).left
        fine = 4.0**-plan.fine_bits if isinstance(plan, BufferedToeplitz) else 1.0
        assert plan.rmse(leaves) ** 2 == pytest.approx(np.sum(left**2) / leaves * plan.noise.variance * fine, rel=1e-6)


def test_a_closed_batch_draws_only_the_nodes_of_its_release():
    plan = NegativeDigitTree(budget=PURE, horizon=1 << 20)
    source = UnitNodes(2048, 1)
    counter = replace(plan, dimension=2048).open_on(source)
    counter.add(np.zeros((4000, 2048), dtype=np.int64))
    assert source.draws == 0
    counter.release()
    assert source.draws == plan.levels * plan.groups_per_block * (plan.base - 1)


@pytest.mark.parametrize("base", [2, 3, 4, 5, 8, 15])
def test_levels_are_the_fewest_that_hold_the_horizon(base):
    for horizon in range(1, 300):
        levels = levels_for(base, horizon)
        most = (base // 2) * (base**levels - 1) // (base - 1)
        fewer = (base // 2) * (base ** (levels - 1) - 1) // (base - 1)
        assert fewer < horizon <= most


def test_the_default_tree_serves_two_to_the_thirty_with_eight_levels():
    plan = NegativeDigitTree(budget=PureEpsilon(1))
    assert (plan.base, plan.levels, plan.horizon) == (15, 8, 1 << 30)
    assert plan.noise.numerator == 8 * plan.noise.denominator


def test_the_mean_number_of_nodes_is_that_of_counting_them():
    for base in (2, 3, 4, 7):
        counted = []
        for t in range(1, 200):
            rest, size = t, 0
            while rest:
                digit = (rest + (base - 1) // 2) % base - (base - 1) // 2
                size, rest = size + abs(digit), (rest - digit) // base
            counted.append(size)
            assert mean_nodes(base, levels_for(base, 199), t) == Fraction(sum(counted), t)


def test_blocks_share_no_node():
    """Block-diagonal: the noise of a block's releases is that of its own nodes, whatever other blocks do."""

    class UnitCells:
        def __init__(self) -> None:
            self.unit = UnitNodes(4096, 1)
            self.owners: dict[int, int] = {}

        def draw_cells(self, cells: Sequence[int], blocks: Sequence[tuple[int, ...]], nodes: int) -> np.ndarray:
            drawn = self.unit.draw([(cell, *block) for cell, block in zip(cells, blocks, strict=True)], nodes)
            for cell, part in zip(cells, drawn, strict=True):
                for coordinate in np.flatnonzero(part.any(axis=0)).tolist():
                    self.owners[coordinate] = cell
            return drawn

    tree = NegativeDigitTree(budget=PURE, horizon=LEAVES, base=3, dimension=4096)
    source = UnitCells()
    counters = BlockCounters(BlockPlan(plan=tree, blocks=4), source)
    rows: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    for step in range(LEAVES):
        touched = [block for block in range(3) if step % (block + 1) == 0]
        counters.add(np.array(touched, dtype=np.int64), np.zeros((len(touched), 4096), dtype=np.int64))
        released = counters.release()
        for block in touched:
            rows[block].append(released[block])
            used = np.flatnonzero(released[block]).tolist()
            assert {source.owners[coordinate] for coordinate in used} <= {block}
        assert not released[3].any()
    for taken in rows.values():
        left = tree.factorisation(len(taken)).left
        assert np.array_equal(by_column(np.array(taken, dtype=float)), by_column(left))
