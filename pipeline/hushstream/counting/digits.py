"""Numbers with negative digits, which give the levels of a tree and the number of nodes in its releases.

With base b every whole number from 0 to (b//2) (b^h - 1) / (b - 1) is, in one way, the sum of d_i b^i over
i < h with digits d_i from -((b-1)//2) to b//2. Base 2 has the digits 0 and 1: the binary tree.

*Sums.* Exact sums of leaves: checks before the addition, and the additions.

*Statement.* The guarantee of a counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.calibration import Budget
from hushstream.counting.errors import BadLeaves, BadPlan
from hushstream.privacy.mechanisms.guarantee import NOISE_ONCE
from hushstream.privacy.promises.promise import Deployment, Guarantee, Lifetime

LARGEST_BASE = 63
LARGEST_HORIZON = 1 << 40
DEFAULT_HORIZON = 1 << 30


def levels_for(base: int, horizon: int) -> int:
    """The fewest digits in which every number up to ``horizon`` can be written.

    Raises:
        BadPlan: a base outside 2 to 63, or a horizon outside 1 to 2^40.
    """
    if not isinstance(base, int) or not 2 <= base <= LARGEST_BASE:
        raise BadPlan(f"base: expected a whole number from 2 to {LARGEST_BASE}, got {base!r}")
    if not isinstance(horizon, int) or isinstance(horizon, bool) or not 1 <= horizon <= LARGEST_HORIZON:
        raise BadPlan(f"horizon: expected a whole number from 1 to 2^40, got {horizon!r}")
    levels = 1
    while (base // 2) * ((base**levels - 1) // (base - 1)) < horizon:
        levels += 1
    return levels


def lowest(base: int) -> int:
    """The size of the smallest digit, (b-1)//2."""
    return (base - 1) // 2


def shift(base: int, levels: int) -> int:
    """The number to add so that ordinary digits are d_i + (b-1)//2, all from 0 to b-1."""
    return int(lowest(base) * ((base**levels - 1) // (base - 1)))


def mean_nodes(base: int, levels: int, leaves: int) -> Fraction:
    """Mean over t = 1..leaves of the sum of |d_i(t)|: how many nodes a release adds or subtracts."""
    first = shift(base, levels) + 1
    total = sum(_digit_sizes(base, level, first + leaves) - _digit_sizes(base, level, first) for level in range(levels))
    return Fraction(total, leaves)


def _digit_sizes(base: int, level: int, end: int) -> int:
    """Sum over u < end of |ordinary digit of u at ``level`` - (b-1)//2|."""
    sizes = [abs(digit - lowest(base)) for digit in range(base)]
    span = int(base**level)
    cycles, rest = divmod(end, base * span)
    digit, inside = divmod(rest, span)
    return cycles * span * sum(sizes) + span * sum(sizes[:digit]) + inside * sizes[digit]


SAFE_BITS = 62
LARGEST_SUM = (1 << SAFE_BITS) - 1
"""Sums and noise stay below 2^62 in size each, so that a release fits into 64 bits."""

_ROWS_AT_ONCE = 32
_INT64 = np.dtype(np.int64)


def require_leaves(leaves: NDArray[np.int64], dimension: int) -> None:
    """Refuse what is no int64 array of shape (n, dimension).

    Raises:
        BadLeaves: another type or shape.
    """
    if not isinstance(leaves, np.ndarray) or leaves.dtype != _INT64:
        got = leaves.dtype if isinstance(leaves, np.ndarray) else type(leaves).__name__
        raise BadLeaves(f"leaves: expected an int64 array, got {got}")
    if leaves.ndim != 2 or leaves.shape[1] != dimension:
        raise BadLeaves(f"leaves: expected shape (n, {dimension}), got {leaves.shape}")


def bound_after(bound: int, sums: NDArray[np.int64], leaves: NDArray[np.int64]) -> int:
    """A bound on the size of every sum once ``leaves`` are added.

    Args:
        bound: a bound before the addition.
        sums: the sums before.
        leaves: the leaves to add, for any assignment of rows to sums.

    Raises:
        BadLeaves: a sum could leave 2^62.
    """
    return bound_with(bound, sums, largest_size(leaves) * len(leaves)) if len(leaves) else bound


def bound_with(bound: int, sums: NDArray[np.int64], more: int) -> int:
    """`bound_after` of leaves that move no sum by more than ``more``."""
    if bound + more > LARGEST_SUM:
        # The bound ignores that summands of both signs cancel. So the sums themselves are measured before a refusal.
        bound = largest_size(sums)
        if bound + more > LARGEST_SUM:
            raise BadLeaves("leaves: expected sums within 2^62, got leaves that could leave them")
    return bound + more


def largest_size(values: NDArray[np.int64]) -> int:
    """The largest absolute value, as an unbounded integer (that of -2^63 too)."""
    return max(int(np.maximum.reduce(values, axis=None)), -int(np.minimum.reduce(values, axis=None)))


def row_sizes(values: NDArray[np.int64]) -> list[int]:
    """`largest_size` of each row."""
    highest, lowest = np.maximum.reduce(values, axis=1).tolist(), np.minimum.reduce(values, axis=1).tolist()
    return [max(high, -low) for high, low in zip(highest, lowest, strict=True)]


def column_sums(leaves: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum of the rows, int64 (dimension,)."""
    rows, dimension = leaves.shape
    if rows % _ROWS_AT_ONCE == 0 and leaves.flags.c_contiguous:
        # NumPy adds row by row, and each row has a fixed cost. Fewer, longer rows save most of it.
        leaves = np.add.reduce(leaves.reshape(_ROWS_AT_ONCE, -1), axis=0).reshape(-1, dimension)
    sums: NDArray[np.int64] = np.add.reduce(leaves, axis=0)
    return sums


LARGEST_LIFE = 1_000_000


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What the two streams of the guarantee differ in.

    Attributes:
        relation: in words.
        unit: in words.
        any_content: True when the plan's sensitivity bounds one content against any other (not only against
            null); then a report against another costs no more than against null.
        leaves: largest number of leaves of one unit. The norms of its moves add up to at most the sensitivity, so by
            the triangle inequality a node's bound is that of one leaf, and only more drawn integers differ.
        step: unit of the sensitivity.
        apart: where a squared distance is priced (rho), that of two contents, in squares of the sensitivity: 4 by the
            triangle inequality through null, less where it was derived.
    """

    relation: str = "zero-out: neighbours differ in the content of one event, a report or null"
    unit: str = "one event"
    any_content: bool = False
    leaves: int = 1
    step: str = "lattice units"
    apart: Fraction = Fraction(4)


def counter_guarantee(
    budget: Budget,
    mechanism: str,
    sensitivity: int,
    norm: str,
    changed_draws: int,
    truncation: Fraction,
    neighbours: Neighbours,
    units_in_life: int,
    deployment: Deployment,
    zone: str,
) -> Guarantee:
    """Make a counter's guarantee; see `hushstream.counting.counter` for its proof.

    Raises:
        BadPlan: units out of range.
    """
    if not isinstance(units_in_life, int) or isinstance(units_in_life, bool) or not 1 <= units_in_life <= LARGEST_LIFE:
        raise BadPlan(f"units_in_life: expected a whole number from 1 to {LARGEST_LIFE}, got {units_in_life!r}")
    changed_draws *= neighbours.leaves
    cost = budget.cost(changed_draws, truncation)
    life = budget.many(units_in_life, changed_draws, truncation)
    within = "one leaf" if neighbours.leaves == 1 else f"at most {neighbours.leaves} leaves"
    return Guarantee(
        mechanism=mechanism,
        relation=neighbours.relation,
        unit=neighbours.unit,
        cost=cost,
        replace_one=cost if neighbours.any_content else budget.exchange(1, neighbours.apart, changed_draws, truncation),
        lifetime=Lifetime(
            units_in_life,
            1,
            life,
            life
            if neighbours.any_content
            else budget.exchange(units_in_life, neighbours.apart, changed_draws, truncation),
        ),
        sensitivity=sensitivity,
        norm=norm,
        zone=zone,
        deployment=deployment,
        truncation_units=cost.delta_units - _target_units(budget),
        not_protected=(
            "how many leaves there are, and when each came and was released",
            "what holds for the population, and what follows from it for anyone",
            f"the leaves, from whoever runs the {zone} zone or holds its key",
        ),
        conditions=(
            f"every unit is in {within}, and moves all of them together by at most the sensitivity",
            NOISE_ONCE,
        ),
        rho_micro=budget.rho_micro,
        any_content=neighbours.any_content,
    )


def _target_units(budget: Budget) -> int:
    # A budget in rho prints its epsilon at a delta of its own; the tables' part comes on top.
    return budget.cost(0, Fraction(0)).delta_units
