"""What the audit of one mechanism or one configuration found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hushstream.privacy.audits.audit import AuditResult
from hushstream.privacy.promises.promise import Guarantee
from hushstream.schemas.errors import HushstreamError

RUNS = 10_000
LEAST_RUNS, MOST_RUNS = 100, 1_000_000


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found beside what is claimed.

    Attributes:
        mechanism: its name.
        settings: what was attacked, as plain values.
        result: the attack's lower bounds and the claim.
        guarantee: of the noise that was attacked.
        seen: which of the releases the attack looked at, where it was not one.
    """

    mechanism: str
    settings: Mapping[str, Any]
    result: AuditResult
    guarantee: Guarantee
    seen: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; the settings depend on the system."""
        claimed = self.guarantee.as_json()
        return {
            "mechanism": self.mechanism,
            **self.settings,
            "runs": self.result.runs,
            "false_alarm": self.result.false_alarm,
            "epsilon_lower_bound": self.result.epsilon_lower_bound,
            "calibrated_lower_bound": self.result.calibrated_lower_bound,
            "claimed": {name: claimed[name] for name in ("epsilon", "delta", "epsilon_micro", "delta_units")},
            "passed": self.result.passed,
        }

    def as_text(self) -> str:
        """The finding in plain English, one fact a line."""
        result, curve = self.result, self.result.calibrated_lower_bound
        lines = [
            f"Mechanism: {self.guarantee.mechanism}.",
            f"Claimed: {result.claimed}.",
            *([f"Seen: {self.seen}."] if self.seen else []),
            f"Attacked: epsilon is at least {result.epsilon_lower_bound:.4f} (confidence 1 - {result.false_alarm:g}, "
            f"{result.runs} runs with {self.guarantee.unit} and as many without).",
        ]
        if curve is not None:
            lines.append(f"By the exact trade-off curve the noise is that of epsilon {curve:.4f} or more.")
        if result.strongest:
            lines.append(f"The lower bound {'stays within' if result.passed else 'EXCEEDS'} the claim.")
        else:
            lines.append(
                "This tells nothing: a bound of 0 comes of noise that this attack cannot see through in so few runs, "
                "whether it is as large as claimed or not. Take more by --runs."
            )
        return "\n".join(lines) + "\n"


def require_runs(runs: int, false_alarm: float) -> None:
    """Refuse an impossible number of runs or rate of false alarms.

    Raises:
        HushstreamError: names what was expected.
    """
    if not LEAST_RUNS <= runs <= MOST_RUNS or not 0 < false_alarm < 1:
        raise HushstreamError(
            f"audit: expected {LEAST_RUNS} to {MOST_RUNS} runs and a false alarm in (0, 1), got {runs}, {false_alarm}"
        )
