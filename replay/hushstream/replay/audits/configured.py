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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hushstream.counting import BufferedToeplitz, Concentrated, Plan, PureLength
from hushstream.privacy.amounts import count_text, epsilon_float
from hushstream.privacy.audits import CHANCE, AuditResult, Family, Sizes, gamma_sizes, half_normal_sizes, lattice_sizes
from hushstream.privacy.promises.promise import Guarantee, amounts
from hushstream.replay.audits.readings import of_rho
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
    each = false_alarm if noise is None else false_alarm / 2
    result, least, known = attacked(runs, each), attacked.least(runs, each), attacked.family is not None
    size = None
    if noise is not None:
        found = noise(DRAWS, each)
        size = SizeReport(found, noise.least(found.runs, each))
    return AuditReport(mechanism, settings, result, guarantee, seen, tuple(reduced), least, size, curve_known=known)


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
class SizeReport:
    """The result of the test of the mean size of the noise.

    Attributes:
        result: the bound on epsilon, and the epsilon that the noise is calibrated to.
        least: the audit detects a release that costs at least this epsilon with probability `CHANCE`; None where it
            detects none.
    """

    result: AuditResult
    least: float | None

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "draws": self.result.runs,
            "calibrated_lower_bound": self.result.calibrated_lower_bound,
            "claimed_epsilon": epsilon_float(self.result.claimed.epsilon_micro),
            "finds_from_epsilon": self.least,
            "passed": self.result.passed,
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit, with the claim.

    Attributes:
        mechanism: its name.
        settings: the attacked settings, as plain values.
        result: the attack's lower bounds and the claim.
        guarantee: the guarantee of the attacked noise.
        seen: which of several releases the attack used; empty for one release.
        reduced: the parts of the configuration that were left out, each with the reason why the bound does not change.
        least: as in `SizeReport`, for the attack on neighbours.
        size: the result for the noise alone; None where it was not tested.
        curve_known: whether the power could be computed.
    """

    mechanism: str
    settings: Mapping[str, Any]
    result: AuditResult
    guarantee: Guarantee
    seen: str = ""
    reduced: tuple[str, ...] = ()
    least: float | None = None
    size: SizeReport | None = None
    curve_known: bool = True

    @property
    def passed(self) -> bool:
        """Whether no attack proved more than the claim."""
        return self.result.passed and (self.size is None or self.size.result.passed)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; the settings depend on the system."""
        return {
            "mechanism": self.mechanism,
            **self.settings,
            "runs": self.result.runs,
            "false_alarm": self.result.false_alarm,
            "epsilon_lower_bound": self.result.epsilon_lower_bound,
            "calibrated_lower_bound": self.result.calibrated_lower_bound,
            "claimed": amounts(self.guarantee.cost),
            "power": {"chance": CHANCE, "finds_from_epsilon": self.least},
            "size_of_noise": None if self.size is None else self.size.as_json(),
            "reduced": list(self.reduced),
            "passed": self.passed,
        }

    def as_text(self) -> str:
        """The finding as text, one fact a line."""
        result = self.result
        lines = [
            f"Mechanism: {self.guarantee.mechanism}.",
            f"Claimed: {result.claimed}.",
            *([f"Seen: {self.seen}."] if self.seen else []),
            *(f"Left out: {what}." for what in self.reduced),
            *self._neighbours(),
            *([] if self.size is None else _size_lines(self.size)),
            "No attack proved more than the claim." if self.passed else "The lower bound EXCEEDS the claim.",
        ]
        return "\n".join(lines) + "\n"

    def _neighbours(self) -> Iterator[str]:
        result, curve = self.result, self.result.calibrated_lower_bound
        runs = f"{count_text(result.runs, 'run')} with {self.guarantee.unit} and as many without"
        if result.strongest:
            yield f"Attacked: epsilon is at least {result.epsilon_lower_bound:.4f} ({confidence(result)}, {runs})."
            if curve is not None:
                yield f"By the exact trade-off curve, the noise is that of epsilon {curve:.4f} or more."
        else:
            no_bound = "could not be distinguished, so this attack gives no lower bound"
            yield f"Attacked: {runs} {no_bound} ({confidence(result)})."
        if self.curve_known:
            claim = epsilon_float(result.claimed.epsilon_micro)
            more = "" if self.least is None else " More runs (--runs) detect smaller excesses."
            yield f"Its power: {power(self.least, claim)}{more}"
        else:
            yield "Its power is not known, as the exact curve of this attack has no closed form."


def _size_lines(size: SizeReport) -> Iterator[str]:
    result = size.result
    yield (
        f"Size of the noise: {result.runs:,} draws have the size of noise for epsilon "
        f"{result.calibrated_lower_bound or 0:.4f} or more ({confidence(result)}); the claim is epsilon "
        f"{epsilon_float(result.claimed.epsilon_micro):.4g}."
    )
    yield f"Its power: {power(size.least, epsilon_float(result.claimed.epsilon_micro))}"


def confidence(result: AuditResult) -> str:
    """The confidence of the bound."""
    return f"confidence 1 - {result.false_alarm:g}"


def power(least: float | None, claimed: float) -> str:
    """The power of an audit in words."""
    if least is None:
        return f"it would detect no release, even if it cost much more than epsilon {claimed:.4g}."
    return (
        f"with probability {CHANCE:g} it detects a release that costs epsilon {least:.4g} or more in place of "
        f"{claimed:.4g} ({least / claimed:.2f} times as much)."
    )


def require_runs(runs: int, false_alarm: float) -> None:
    """Refuse an impossible number of runs or rate of false alarms.

    Raises:
        HushstreamError: a number out of range; the message states the range.
    """
    if not LEAST_RUNS <= runs <= MOST_RUNS or not 0 < false_alarm < 1:
        raise HushstreamError(
            f"audit: expected {LEAST_RUNS} to {MOST_RUNS} runs and a false alarm in (0, 1), got {runs}, {false_alarm}"
        )
