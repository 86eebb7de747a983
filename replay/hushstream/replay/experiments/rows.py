"""Makes the columns on privacy and seeds that rows of all experiments have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from hushstream.privacy.amounts import delta_value, epsilon_float, float_up
from hushstream.privacy.promises.promise import Guarantee

Row = dict[str, Any]
"""A flat row: strings, numbers and booleans by column."""


def privacy_columns(guarantee: Guarantee) -> Row:
    """The columns of a guarantee."""
    lifetime = guarantee.lifetime.cost
    return {
        "epsilon": epsilon_float(guarantee.epsilon_micro),
        "delta": float_up(delta_value(guarantee.delta_units)),
        "lifetime_epsilon": epsilon_float(lifetime.epsilon_micro),
        "lifetime_delta": float_up(delta_value(lifetime.delta_units)),
        "relation": guarantee.relation,
        "deployment": guarantee.deployment,
        "private_as_stated": guarantee.private_as_stated,
        "marks": "; ".join(guarantee.marks),
    }


def pick(rows: Sequence[Row], **wanted: Any) -> Row:
    """The one row with these columns.

    Raises:
        KeyError: there is none, or several.
    """
    found = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    if len(found) != 1:
        raise KeyError(f"expected one row with {wanted}, got {len(found)}")
    return found[0]


def over_seeds(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean and 95 % interval (Student's t) of (n,) values, one a seed; with a single seed the bounds are NaN."""
    mean = float(values.mean())
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return mean, mean - half, mean + half
