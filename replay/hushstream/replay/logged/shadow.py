"""A deployment in shadow mode: estimates what its answers would have earned where an application showed its own choice.

Answers follow from earlier decisions alone, so each row's term has the mean that it has for a fixed policy. How likely
the application was to show what it did is estimated from the log, out of fold: where that is a function of what was
known, SNIPS and DR estimate the answers' value. They cannot see what the application knew besides, nor what it never
shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.engine.declare.declaration import System
from hushstream.engine.learner.batch import eligible_mask
from hushstream.ops.decision_table import NOTICE, DecisionTable, decision_table
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.logged.evaluate import importance_sampling
from hushstream.replay.logged.gains import gains
from hushstream.replay.logged.intervals import Interval
from hushstream.replay.logged.log import ESTIMATED_MARK, LoggedDataset
from hushstream.replay.logged.models import expected_rewards, with_estimated_propensities

_NAME = "answers"


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """The lift of the answers over what the application showed, a decision.

    Attributes:
        deployment: whose.
        rows: decisions that count.
        agreed: in how many the application showed what was answered.
        left_out: decisions that do not count, by reason.
        earned: mean reward of what was shown.
        snips: the lift by self-normalised weights; None where nothing that was answered was ever shown.
        lift: doubly robust; None where too few rows tell of it.
        interval: of ``lift``, 95 %, over users.
    """

    deployment: str
    rows: int
    agreed: int
    left_out: Mapping[str, int]
    earned: float
    snips: float | None
    lift: float | None
    interval: Interval | None

    @property
    def certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and (self.interval.low > 0.0 or self.interval.high < 0.0)

    @property
    def rows_more(self) -> int | None:
        """Decisions more until the interval excludes 0, if lift and spread stay what they are; None if nobody knows."""
        if self.interval is None or not self.lift:
            return None
        half = (self.interval.high - self.interval.low) / 2
        return max(0, math.ceil(self.rows * (half / self.lift) ** 2) - self.rows)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "notice": NOTICE.format(deployment=self.deployment),
            "propensities": "estimated",
            "rows": self.rows,
            "agreed": self.agreed,
            "left_out": dict(self.left_out),
            "earned": self.earned,
            "lift_snips": self.snips,
            "lift_dr": self.lift,
            "interval": None if self.interval is None else list(self.interval),
            "certain": self.certain,
            "rows_more": self.rows_more,
        }

    def as_text(self) -> str:
        """Lines for people."""
        lines = [
            NOTICE.format(deployment=self.deployment),
            f"{ESTIMATED_MARK}: how likely the application was to show what it did.",
            f"{self.rows} decisions in the shadow; in {self.agreed} the application showed what was answered",
            *(f"  left out: {count} ({why})" for why, count in sorted(self.left_out.items())),
            f"what was shown earned {self.earned:.4f} a decision",
        ]
        if self.lift is None or self.interval is None:
            return "\n".join((*lines, "lift: too few decisions tell of it; go on"))
        low, high = self.interval
        snips = "" if self.snips is None else f"; SNIPS {self.snips:+.4f}"
        lines.append(f"lift of the answers: {self.lift:+.4f} a decision, 95 % within {low:+.4f} to {high:+.4f}{snips}")
        if self.certain:
            lines.append("it would bring more" if low > 0 else "it would bring less")
        elif self.rows_more is None:
            lines.append("no lift is seen; how many decisions would show one is not known")
        else:
            lines.append(f"about {self.rows_more} decisions more until the interval excludes 0, if the lift stays")
        return "\n".join(lines)


def shadow_report(logs: LogCopy, system: System, party: str = "") -> ShadowReport:
    """Judge a deployment's answers by its own log.

    Args:
        logs: with contexts, clicks and decisions from their beginning.
        system: whose logs they are.
        party: whose users, where each party has its own.

    Raises:
        HushstreamError: the deployment does not decide, or its log has no decision that was shown.
        LogError: one arm alone was shown, or to one user alone.
    """
    table = decision_table(logs, system, party, in_shadow=True)
    log = with_estimated_propensities(_logged(table))
    answered = np.eye(table.arms)[[row.answer.arm for row in table.rows]]
    agreed = int(sum(row.answer.arm == row.shown for row in table.rows))
    found = gains(log, {_NAME: answered}, expected_rewards(log), (_NAME, _NAME))
    one = found.judged[0] if found.judged else None
    snips = importance_sampling(log, answered).value - found.logged if agreed else None
    return ShadowReport(
        deployment=table.deployment,
        rows=len(log),
        agreed=agreed,
        left_out=table.left_out,
        earned=found.logged,
        snips=snips,
        lift=None if one is None else one.gain,
        interval=None if one is None else one.interval,
    )


def _logged(table: DecisionTable) -> LoggedDataset:
    """What the application showed, as the log of its policy."""
    contexts = [row.context for row in table.rows]
    everything = np.ones(table.arms, dtype=np.bool_)
    masks = [eligible_mask(one.eligible, table.arms) if one.eligible else everything for one in contexts]
    return LoggedDataset(
        name=table.deployment,
        arms=table.arms,
        users=np.array([str(one.user) for one in contexts]),
        timestamps_ms=np.array([one.time_ms for one in contexts]),
        contexts=np.stack([one.features for one in contexts]),
        chosen=np.array([row.shown for row in table.rows]),
        rewards=np.array([row.reward for row in table.rows]),
        eligible=np.stack(masks),
        internal=True,
    )
