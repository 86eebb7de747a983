"""The rows of a benchmark's result: a figure each, some with a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

Progress = Callable[[str], None]
"""Called with a text that names the current measurement."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """A figure, and its target if it has one.

    Attributes:
        name: what was measured, with the size of the run.
        value: the figure, a median over rounds unless the name says otherwise.
        unit: the unit of ``value`` and of the number in ``target``.
        target: the target in words ("at least 3.5"), or "" for a figure without one.
        reached: whether the value meets the target; None without a target.
    """

    name: str
    value: float
    unit: str
    target: str = ""
    reached: bool | None = None


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
