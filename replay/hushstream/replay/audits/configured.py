"""The audit of one configuration: attacks its releases, and compares the result with the price in its guarantee.

Two attacks are made on the releases that the configuration gives. *Neighbours*: one unit is present or absent, and the
attacker decides by the likelihood ratio of all releases. This finds noise that is too small, and a unit that changes
the result too much; at a small epsilon it finds only a large excess. *Size*: no unit is present, so the releases are
the noise, and its mean size is compared with the distribution for this epsilon. This finds a few per cent of missing
noise at any epsilon, but no error in the sensitivity. Each attack has half of the false-alarm rate, and states its
power.

The attacked system has the sizes of the configuration. Parts that are too large for an audit are left out if the bound
does not depend on them, and the report states them with the reason (`AuditReport.reduced`). A counter with a long
horizon is attacked by its first releases: its noise is that of the whole horizon, and the bound uses the curve of these
releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hushstream.counting import BufferedToeplitz, Concentrated, Plan, PureLength
from hushstream.privacy.amounts import count_text
from hushstream.privacy.audits import Family, Sizes, gamma_sizes, half_normal_sizes, lattice_sizes
from hushstream.privacy.promises.promise import Guarantee, amounts
from hushstream.replay.audits.readings import of_rho
from hushstream.replay.audits.row import Row, row_json
from hushstream.replay.audits.tests import NeighbourTest, SizeTest
from hushstream.schemas.errors import HushstreamError

DRAWS = 20_000
"""Draws of the noise. With this many, a test at half of a false-alarm rate of 1e-6 finds noise about 4 % too small."""

_LEAVES = 40_000
"""How many steps an audit feeds to counters on each neighbour, over all runs; they take some seconds."""

_COARSE = 64
"""Noise narrower than this many lattice steps is compared with its discrete law, wider with the continuous."""


def report_of(
    mechanism: str,
    settings: Mapping[str, Any],
    attacked: NeighbourTest,
    noise: SizeTest | None,
    guarantee: Guarantee,
    runs: int,
    false_alarm: float,
    seen: str = "",
    reduced: Sequence[str] = (),
) -> AuditReport:
    """Make both attacks; see the module's docstring.

    Args:
        mechanism, settings, guarantee, seen, reduced: see `AuditReport`.
        attacked: the attack on neighbours.
        noise: None where an answer has one of two values, so that its noise has no size.
        runs: releases on each neighbour.
        false_alarm: false alarms of both attacks together.
    """
    tests: dict[str, tuple[NeighbourTest | SizeTest, int]] = {"neighbours": (attacked, runs)}
    if noise is not None:
        tests["size of the noise"] = noise, DRAWS
    rows = []
    for name, (test, draws) in tests.items():
        result = test(draws, false_alarm / len(tests))
        rows.append(Row(name, "release", f"{guarantee.unit}, there or not", None, result, test.power(result)))
    return AuditReport(mechanism, settings, guarantee, tuple(rows), seen, tuple(reduced))


def left_out(*parts: tuple[object, str]) -> tuple[str, ...]:
    """Texts of what an attacked system leaves out and why, of those parts that it has."""
    return tuple(text for there, text in parts if there)


def require_noise(mechanism: str) -> None:
    """Refuse a configuration that releases exact sums.

    Raises:
        HushstreamError: it does.
    """
    if mechanism == "exact":
        raise HushstreamError(
            "audit: expected a release.mechanism that adds noise, got exact, which guarantees nothing and is for "
            "public data alone"
        )


def laplace_law(unit: int, epsilon: float) -> Sizes:
    """|x| of discrete Laplace noise of scale ``unit``/epsilon, in units; bounds below epsilon / 4 are given as 0."""
    family = Family(_no_curve, lambda setting: setting, epsilon / 4)
    return lattice_sizes(unit, family) if unit < _COARSE * epsilon else gamma_sizes(1, family)


def gaussian_law(rho: float, delta: float) -> Sizes:
    """|x| of discrete Gaussian noise on a fine lattice, in its deviation at rho; bounds below rho/16 are given as 0."""
    return half_normal_sizes(rho, replace(of_rho(_no_curve, delta), smallest=rho / 16))


def first_draw(plan: Plan) -> tuple[float, Sizes]:
    """A counter's release after one empty leaf, which is one draw: its unit in lattice steps, and its distribution.

    Both are computed from the budget, from the change that one leaf makes, and from the number of draws with the leaf.
    They are not computed from the noise that the plan states.
    """
    budget = plan.budget
    if isinstance(budget, Concentrated):
        if isinstance(plan, BufferedToeplitz):
            copies = float(plan.shape.squared_norm(plan.horizon)) * float(plan.factorisation(1).left[0, 0]) ** 2
        else:
            copies = float(plan.levels)
        rho = float(budget.rho)
        return plan.sensitivity * math.sqrt(copies / (2 * rho)), gaussian_law(rho, float(budget.delta))
    unit, epsilon = plan.levels * plan.sensitivity, float(budget.epsilon)
    if isinstance(budget, PureLength) and plan.dimension > 1:
        return unit, gamma_sizes(plan.dimension, Family(_no_curve, lambda setting: setting, epsilon / 4))
    return unit, laplace_law(unit, epsilon)


def steps_for(runs: int, parallel: int, effort: int) -> int:
    """The number of steps that each counter may get; one step takes ``effort`` times the smallest effort.

    Raises:
        HushstreamError: with this many runs of the configuration, no time is left for a step.
    """
    steps = _LEAVES // (-(-runs // parallel) * effort)
    if not steps:
        raise HushstreamError(
            f"audit: expected at most {_LEAVES // effort * parallel} runs of this configuration, of which one release "
            f"gives {parallel}, got {runs}; with so many there is no time for even the first step of its counter, so "
            f"take fewer by --runs"
        )
    return steps


def seen(plan: Plan | None, steps: int, what: str) -> str:
    """Text that says which steps of a counter were attacked; empty without a counter."""
    if plan is None:
        return ""
    least = f"the first {steps:,} of at most {count_text(plan.horizon, what, ',')} of the counter"
    if steps >= plan.horizon:
        return f"{least}, all there are"
    return f"{least}, with the noise for all of them, and the curve of an attacker who sees only the first ones"


def _no_curve(setting: float) -> Callable[[float], float]:
    """Noise without content has no curve, as no unit is distinguished."""
    return lambda false_rate: false_rate


RUNS = 10_000
LEAST_RUNS, MOST_RUNS = 100, 1_000_000


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit, with the claim.

    Attributes:
        mechanism: its name.
        settings: the attacked settings, as plain values.
        guarantee: the guarantee of the attacked noise.
        rows: the attack on neighbours and, where noise has a size, the test of that.
        seen: which of several releases the attack used; empty for one release.
        reduced: the parts of the configuration that were left out, each with the reason why the bound does not change.
    """

    mechanism: str
    settings: Mapping[str, Any]
    guarantee: Guarantee
    rows: tuple[Row, ...]
    seen: str = ""
    reduced: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no attack proved more than the claim."""
        return all(row.passed for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; the settings depend on the system."""
        return {
            "mechanism": self.mechanism,
            **self.settings,
            "claimed": amounts(self.guarantee.cost),
            "seen": self.seen,
            "reduced": list(self.reduced),
            "passed": self.passed,
            "audits": list(map(row_json, self.rows)),
        }

    @property
    def facts(self) -> str:
        """What was attacked, a fact a line; `hushstream.replay.audits.row.as_table` shows the rows."""
        seen = (f"Seen: {self.seen}.",) if self.seen else ()
        left_out = (f"Left out: {what}." for what in self.reduced)
        return "\n".join([f"Mechanism: {self.guarantee.mechanism}.", *seen, *left_out])


def require_runs(runs: int, false_alarm: float) -> None:
    """Refuse an impossible number of runs or rate of false alarms.

    Raises:
        HushstreamError: a number out of range; the message states the range.
    """
    if not LEAST_RUNS <= runs <= MOST_RUNS or not 0 < false_alarm < 1:
        raise HushstreamError(
            f"audit: expected {LEAST_RUNS} to {MOST_RUNS} runs and a false alarm in (0, 1), got {runs}, {false_alarm}"
        )
