"""Exact sums of leaves: checks before the addition, and the additions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.errors import BadLeaves

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
