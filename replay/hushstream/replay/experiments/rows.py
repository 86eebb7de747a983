"""Makes the columns on privacy and seeds that rows of all experiments have.

*Targets.* The rows of a benchmark's result: a figure each, some with a target; and the error of a measurement that
failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtrit

from hushstream.privacy.amounts import delta_value, epsilon_float, float_up
from hushstream.privacy.promises.promise import Guarantee
from hushstream.schemas.errors import HushstreamError

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
    half = float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values)))
    return mean, mean - half, mean + half


def columns(name: str, values: Sequence[float] | NDArray[np.float64]) -> Row:
    """Columns of one value a seed: its mean and 95 % interval."""
    mean, low, high = over_seeds(np.array(values))
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def share(name: str, held: Sequence[bool]) -> Row:
    """Columns of a share of trials: the share and its exact 95 % interval (Clopper and Pearson 1934)."""
    hits, trials = sum(held), len(held)
    low = betaincinv(hits, trials - hits + 1, 0.025) if hits else 0.0
    high = betaincinv(hits + 1, trials - hits, 0.975) if hits < trials else 1.0
    return {name: hits / trials, f"{name}_low": float(low), f"{name}_high": float(high)}


def beside_alone(
    less_is_better: bool, alone: Sequence[float] | NDArray[np.float64], **others: Sequence[float] | NDArray[np.float64]
) -> Row:
    """Columns of learners alone and of other policies, one value a seed, and what each gains over alone.

    The gain, ``NAME_over_alone``, is paired by seed; positive is better.
    """
    sign, found = -1 if less_is_better else 1, columns("alone", alone)
    for name, values in others.items():
        found |= columns(name, values) | columns(f"{name}_over_alone", sign * (np.array(values) - np.array(alone)))
    return found


class BenchFailed(HushstreamError):
    """A measurement failed; the message says which process ended, or which record did not arrive."""


Progress = Callable[[str], None]
"""Called with a text that names the current measurement."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """A figure, and its target if it has one.

    Attributes:
        name: what was measured, with the size of the run.
        value: the figure, a median over rounds unless the name says otherwise; None: it was not measured.
        unit: the unit of ``value`` and of the number in ``target``, or why there is no value.
        target: the target in words ("at least 3.5"), or "" for a figure without one.
        reached: whether the value meets the target; None without a target.
    """

    name: str
    value: float | None
    unit: str
    target: str = ""
    reached: bool | None = None


@dataclass(frozen=True, slots=True)
class PeerRow(BenchRow):
    """A figure of a stream, learner or server.

    Attributes:
        guarantees: what it guarantees.
    """

    guarantees: str = ""


def figure(name: str, values: Sequence[float], unit: str) -> BenchRow:
    """A row with the median of some rounds, without a target."""
    return BenchRow(name, float(median(values)), unit)


def at_least(name: str, values: Sequence[float], unit: str, bound: float) -> BenchRow:
    """A row with the median of some rounds, which should be at least ``bound``."""
    value = float(median(values))
    return BenchRow(name, value, unit, f"at least {bound:g}", value >= bound)


def at_most(name: str, values: Sequence[float], unit: str, bound: float) -> BenchRow:
    """A row with the median of some rounds, which should be at most ``bound``."""
    value = float(median(values))
    return BenchRow(name, value, unit, f"at most {bound:g}", value <= bound)


def cpu_seconds(work: Callable[..., object], *given: object) -> float:
    """The thread's CPU seconds of one call."""
    begin = time.thread_time()
    work(*given)
    return time.thread_time() - begin
