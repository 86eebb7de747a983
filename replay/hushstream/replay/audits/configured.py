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

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import BufferedToeplitz, Concentrated, Plan, PureLength
from hushstream.privacy.amounts import Cost, count_text, epsilon_float
from hushstream.privacy.audits.audit import audit_sizes
from hushstream.privacy.audits.laws import Family, Sizes, gamma_sizes, half_normal_sizes, lattice_sizes
from hushstream.privacy.audits.power import Rates, attack_power, size_power
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.audits.mechanisms import of_rho
from hushstream.replay.audits.report import AuditReport, SizeReport
from hushstream.replay.audits.row import Attacked
from hushstream.schemas.errors import HushstreamError

DRAWS = 20_000
"""Draws of the noise. With this many, a test at half of a false-alarm rate of 1e-6 finds noise about 4 % too small."""

_LEAVES = 40_000
"""How many steps an audit feeds to counters on each neighbour, over all runs; they take some seconds."""

_COARSE = 64
"""Noise narrower than this many lattice steps is compared with its discrete law, wider with the continuous."""


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """The noise of a configuration without content.

    Attributes:
        read: returns the sizes of some independent draws, in the unit of the distribution.
        law: the distribution of one draw.
        price: the price that the noise of one draw is calibrated to.
    """

    read: Callable[[], NDArray[np.float64]]
    law: Sizes
    price: Cost

    def report(self, false_alarm: float) -> SizeReport:
        """Compare at least `DRAWS` sizes with the distribution."""
        parts = [self.read()]
        while sum(map(len, parts)) < DRAWS:
            parts.append(self.read())
        sizes = np.concatenate(parts)
        found = audit_sizes(self.law, float(sizes.mean()), self.price, len(sizes), false_alarm)
        least = size_power(self.law, epsilon_float(self.price.epsilon_micro), len(sizes), false_alarm)
        return SizeReport(found, least)


def report_of(
    mechanism: str,
    settings: Mapping[str, Any],
    attacked: Attacked,
    noise: Noise | None,
    guarantee: Guarantee,
    runs: int,
    false_alarm: float,
    seen: str = "",
    reduced: Sequence[str] = (),
    rates: Rates | None = None,
) -> AuditReport:
    """Make both attacks; see the module's docstring.

    Args:
        mechanism, settings, guarantee, seen, reduced: see `AuditReport`.
        attacked: the attack on neighbours.
        noise: None where an answer has one of two values, so that its noise has no size.
        runs: releases on each neighbour.
        false_alarm: false alarms of both attacks together.
        rates: rates of the attack, where it does not decide by a likelihood ratio above 1.
    """
    each = false_alarm if noise is None else false_alarm / 2
    result, family = attacked(runs, each), attacked.family
    claim = epsilon_float(result.claimed.epsilon_micro)
    least = None if family is None else attack_power(family, claim, runs, each, rates)
    size = None if noise is None else noise.report(each)
    return AuditReport(
        mechanism, settings, result, guarantee, seen, tuple(reduced), least, size, curve_known=family is not None
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
