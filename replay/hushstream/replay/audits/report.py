"""The result of the audit of one mechanism or configuration, and its power."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hushstream.privacy.amounts import count_text, epsilon_float
from hushstream.privacy.audits.audit import AuditResult
from hushstream.privacy.audits.power import CHANCE
from hushstream.privacy.promises.promise import Guarantee
from hushstream.schemas.errors import HushstreamError

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
        claimed = self.guarantee.as_json()
        return {
            "mechanism": self.mechanism,
            **self.settings,
            "runs": self.result.runs,
            "false_alarm": self.result.false_alarm,
            "epsilon_lower_bound": self.result.epsilon_lower_bound,
            "calibrated_lower_bound": self.result.calibrated_lower_bound,
            "claimed": {name: claimed[name] for name in ("epsilon", "delta", "epsilon_micro", "delta_units")},
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
