"""The results of a replayed log for each policy, as frozen rows and plain values.

All figures here are exact figures on content (zone-private by PRIVACY rule 11). They exist for public logs, and carry a
warning for internal ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hushstream.replay.logged.evaluate import LEAST_EFFECTIVE, PolicyValue
from hushstream.replay.logged.gains import Gain, Gains
from hushstream.replay.logged.intervals import Interval
from hushstream.replay.logged.log import ESTIMATED_MARK, INTERNAL_MARK
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.studies.p2b.evaluation.deployed import NextSteps
from hushstream.replay.studies.p2b.evaluation.verdict import verdict
from hushstream.replay.studies.p2b.report.results import COLD, WARM_PRIVATE, ConditionSummary
from hushstream.replay.studies.p2b.report.summaries import compare
from hushstream.replay.views import Headline

SCHEMA = "hushstream.evaluation"

NONE_AGREED = "no row was kept: this policy cannot be evaluated"


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """What one policy would have earned on the rows of the evaluated users.

    Attributes:
        policy: a condition of the comparison; ``random`` (uniform over eligible arms), ``popular`` (the arm that earned
            most on contributors' rows), ``non-private`` (the best arm for the context by a model of contributors' exact
            rewards) or ``logged`` (the log's own).
        estimator: see `PolicyValue`.
        value: estimated mean reward; None with fewer than `LEAST_EFFECTIVE` effective rows.
        ci95: its 95 % interval by empirical likelihood; None where fewer than two rows count or all rewards are equal,
            as the spread cannot be estimated then.
        effective_sample_size: (sum w)^2 / sum w^2; for replay the number of kept rows.
        rows: how many rows were played.
        matched: on how many rows the policy chose the logged arm; None for fixed policies.
        largest_weight: the largest importance weight; for replay 1.
        warnings: reasons why the figure may mislead.
    """

    policy: str
    estimator: str
    value: float | None
    ci95: Interval | None
    effective_sample_size: float
    rows: int
    matched: int | None
    largest_weight: float
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, policy: str, found: PolicyValue, matched: int | None = None) -> PolicyRow:
        """Make a row from an estimate."""
        enough = found.effective_sample_size >= LEAST_EFFECTIVE
        spread = enough and math.isfinite(found.interval.high) and found.interval.high > found.interval.low
        return cls(
            policy=policy,
            estimator=found.estimator,
            value=found.value if enough else None,
            ci95=found.interval if spread else None,
            effective_sample_size=found.effective_sample_size,
            rows=found.rows,
            matched=matched,
            largest_weight=found.largest_weight,
            warnings=found.warnings if enough else (_too_few(found.effective_sample_size), *found.warnings),
        )

    @classmethod
    def none_kept(cls, policy: str, rows: int, matched: int) -> PolicyRow:
        """Make the row of a replay that kept no rows."""
        return cls(policy, "replay", None, None, 0.0, rows, matched, 1.0, (NONE_AGREED,))

    @property
    def matched_share(self) -> float | None:
        """The share of rows on which the policy chose the logged arm."""
        return None if self.matched is None else self.matched / self.rows

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "policy": self.policy,
            "estimator": self.estimator,
            "value": self.value,
            "ci95": None if self.ci95 is None else list(self.ci95),
            "effective_sample_size": self.effective_sample_size,
            "rows": self.rows,
            "matched": self.matched,
            "matched_share": self.matched_share,
            "largest_weight": self.largest_weight,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The evaluation of a replayed log.

    Attributes:
        log: its name.
        runner, seed, deployment, config_digest: how it was replayed.
        rows: how many rows of the log were replayed, contributors' included.
        contributors: how many users phase 0 has.
        users: how many users both phases have.
        policies: one row for each policy and estimator.
        gains: the policies compared with the logged one.
        privacy: the guarantee of the private condition.
        counts: events by outcome and records by topic.
        seconds: how long the replay took.
        verify: the result of recomputing everything, by role; None if it was not done.
        internal: whether the log is marked as internal.
        estimated: whether its propensities were estimated.
        environment: versions and cores.
        next_steps: the steps to run the evaluated deployment live; None where no deployment was evaluated.
    """

    log: str
    runner: str
    seed: int
    deployment: str
    config_digest: str
    rows: int
    contributors: int
    users: int
    policies: tuple[PolicyRow, ...]
    gains: Gains
    privacy: StatedGuarantee
    counts: Mapping[str, int]
    seconds: float
    verify: Mapping[str, RoleCheck] | None
    internal: bool = False
    estimated: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)
    next_steps: NextSteps | None = None

    @property
    def throughput(self) -> Mapping[str, float]:
        """The seconds of the replay."""
        return {"seconds": self.seconds}

    @property
    def marks(self) -> tuple[str, ...]:
        """The warnings that must stand wherever a figure of this result is shown."""
        own = ((INTERNAL_MARK, self.internal), (ESTIMATED_MARK, self.estimated))
        return (*(mark for mark, stands in own if stands), *self.privacy.marks)

    @property
    def verdict(self) -> str:
        """The verdict as text."""
        return verdict(self.gains, self.privacy)

    @property
    def ending(self) -> str:
        """The steps to run the evaluated deployment live; empty where no deployment was evaluated."""
        return "" if self.next_steps is None else self.next_steps.as_text()

    @property
    def changed(self) -> bool:
        """Whether published records do not follow from the logs."""
        return any(check.changed for check in (self.verify or {}).values())

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; every number is finite."""
        names = ("log", "runner", "seed", "deployment", "config_digest", "rows", "contributors", "users", "seconds")
        return {
            "schema": SCHEMA,
            "schema_version": 1,
            **{name: getattr(self, name) for name in names},
            "marks": list(self.marks),
            "verdict": self.verdict,
            "gains": _gains_json(self.gains),
            "policies": [row.as_json() for row in self.policies],
            "privacy": {**self.privacy.values, "text": list(self.privacy.lines)},
            "counts": dict(self.counts),
            "verify": None if self.verify is None else {role: check.status for role, check in self.verify.items()},
            **({} if self.next_steps is None else {"deploy": self.next_steps.as_json()}),
        }

    @property
    def headline(self) -> Headline | None:
        """The value of a private start divided by a cold one's, with Fieller's interval; None where it has none."""
        replayed = {row.policy: row for row in self.policies if row.estimator == "replay"}
        warm, cold = (_summary(replayed.get(condition)) for condition in (WARM_PRIVATE, COLD))
        compared = None if warm is None or cold is None else compare(warm, cold)
        if compared is None:
            return None
        what = "mean reward of warm private users over cold ones"
        return Headline(what, compared.ratio, compared.low, compared.high)


def _gains_json(found: Gains) -> dict[str, Any]:
    share, interval = found.kept or (None, None)
    return {
        "logged": found.logged,
        "policies": [_gain_json(one) for one in found.evaluated],
        "left_out": {
            name: {"effective_sample_size": effective, "rewarded_rows": rewarded}
            for name, (effective, rewarded) in found.left_out.items()
        },
        "private_of_nonprivate": share,
        "private_of_nonprivate_ci95": None if interval is None else list(interval),
    }


def _gain_json(one: Gain) -> dict[str, Any]:
    return {"policy": one.policy, "value": one.value, "gain": one.gain, "simultaneous_ci95": list(one.interval)}


def _too_few(effective: float) -> str:
    return f"{effective:.0f} effective rows are below {LEAST_EFFECTIVE}: no value is given"


def _summary(row: PolicyRow | None) -> ConditionSummary | None:
    """A replayed condition as a mean with its half-width; None where there is no interval."""
    if row is None or row.value is None or row.ci95 is None:
        return None
    return ConditionSummary(row.value, (row.ci95.high - row.ci95.low) / 2, max(1, row.matched or 0))
