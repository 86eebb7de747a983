"""Estimates what the answers of a deployment in shadow mode would have earned; applications showed their own choice.

Answers depend on earlier decisions alone, so each row's term has the same mean as for a fixed policy. The propensities
of the application are estimated from the log, out of fold. If they depend only on the context, SNIPS and DR estimate
the value of the answers. They are wrong if the application used other knowledge, or never shows some of the answers.
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
    """The lift per decision of the answers over the application's own choices.

    Attributes:
        deployment: name of the deployment.
        rows: decisions that count.
        agreed: how many of them showed the answer.
        left_out: decisions that do not count, by reason.
        earned: mean reward of what was shown.
        snips: the lift by self-normalised weights; None where no answer was ever shown.
        lift: the lift by doubly robust estimation; None with too few effective rows.
        interval: 95 % interval of ``lift``, over users.
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
        """Further decisions until the interval excludes 0, if lift and spread stay the same; None if unknown."""
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
        """The report as lines of text."""
        lines = [
            NOTICE.format(deployment=self.deployment),
            f"{ESTIMATED_MARK}: the probabilities with which the application showed its choices.",
            f"{self.rows} decisions in the shadow; in {self.agreed} the application showed what was answered",
            *(f"  left out: {count} ({why})" for why, count in sorted(self.left_out.items())),
            f"what was shown earned {self.earned:.4f} a decision",
        ]
        if self.lift is None or self.interval is None:
            return "\n".join((*lines, "lift: too few decisions to estimate it; collect more"))
        low, high = self.interval
        snips = "" if self.snips is None else f"; SNIPS {self.snips:+.4f}"
        lines.append(f"lift of the answers: {self.lift:+.4f} a decision, 95 % within {low:+.4f} to {high:+.4f}{snips}")
        if self.certain:
            lines.append("it would bring more" if low > 0 else "it would bring less")
        elif self.rows_more is None:
            lines.append("no lift is seen; how many decisions it would take is not known")
        else:
            lines.append(f"about {self.rows_more} decisions more until the interval excludes 0, if the lift stays")
        return "\n".join(lines)


def shadow_report(logs: LogCopy, system: System, party: str = "") -> ShadowReport:
    """Evaluate a deployment's answers on its own log.

    Args:
        logs: with contexts, clicks and decisions from their beginning.
        system: the system that wrote the logs.
        party: the party whose users count, where each party has users of its own.

    Raises:
        HushstreamError: the deployment makes no decisions, or its log has no decision that was shown.
        LogError: only one arm was shown, or only one user was shown arms.
    """
    table = decision_table(logs, system, party, in_shadow=True)
    log = with_estimated_propensities(_logged(table))
    answered = np.eye(table.arms)[[row.answer.arm for row in table.rows]]
    agreed = int(sum(row.answer.arm == row.shown for row in table.rows))
    found = gains(log, {_NAME: answered}, expected_rewards(log), (_NAME, _NAME))
    one = found.evaluated[0] if found.evaluated else None
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
    """The application's choices, as the log of its policy."""
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
