"""Numbers with negative digits, which give the levels of a tree and the number of nodes in its releases.

With base b every whole number from 0 to (b//2) (b^h - 1) / (b - 1) is, in one way, the sum of d_i b^i over
i < h with digits d_i from -((b-1)//2) to b//2. Base 2 has the digits 0 and 1: the binary tree.
"""

from __future__ import annotations

from fractions import Fraction

from hushstream.counting.errors import BadPlan

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
