"""One audit of the table: the attacked mechanism, the number of runs, and the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hushstream.privacy.amounts import Cost, delta_text, delta_value, epsilon_float, epsilon_text, float_up
from hushstream.privacy.audits.audit import Attack, AuditResult, audit_attack, epsilon_lower_bound
from hushstream.privacy.audits.laws import Family
from hushstream.privacy.promises.promise import NOT_PRIVATE

Kind = Literal["mechanism", "counter", "release", "role", "attack"]
Effort = Literal["quick", "full", "thorough"]

Run = Callable[[int, float], AuditResult]
"""(runs on each of two neighbours, false-alarm rate) -> the result."""


@dataclass(frozen=True, slots=True, eq=False)
class Attacked:
    """A `Run` of one attack against its exact curves.

    Attributes:
        attack: the attack on the release.
        claimed: the cost that the release claims.
        family: see `hushstream.privacy.audits.audit.audit_attack`.
    """

    attack: Attack
    claimed: Cost
    family: Family | None

    def __call__(self, runs: int, false_alarm: float) -> AuditResult:
        """Run the attack."""
        return audit_attack(self.attack, self.claimed, self.family, runs, false_alarm)


HORIZON = 32
"""How many leaves the attacked counters of small deployments have."""


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit that can be run.

    Attributes:
        name: its name, which does not change; used in JSON and for ``--only``.
        kind: what is audited.
        about: the attack in a few words.
        runs: releases on each neighbour in the quick version.
        run: the attack.
        factor: the full version has this many times the runs; the thorough one ten times as many as the full one.
        paper_claim: a paper's claim for this release that the product does not make; the attack must break it.
        subjects: what is attacked: plans of counters, configurations of releases, functions and objects that draw. A
            test compares them with all that exist.
    """

    name: str
    kind: Kind
    about: str
    runs: int
    run: Run
    factor: int = 4
    paper_claim: Cost | None = None
    subjects: tuple[object, ...] = ()

    def __call__(self, effort: Effort, false_alarm: float) -> Row:
        """Run the audit."""
        factor = {"quick": 1, "full": self.factor, "thorough": 10 * self.factor}[effort]
        result = self.run(self.runs * factor, false_alarm)
        return Row(self.name, self.kind, self.about, self.paper_claim, result)


@dataclass(frozen=True, slots=True)
class Recipe:
    """An audit that is made when needed, because tables of noise may take seconds.

    Attributes:
        name: name of the audit.
        make: makes it.
    """

    name: str
    make: Callable[[], Audit]


def made(audit: Audit) -> Recipe:
    """The recipe of an audit that was made already."""
    return Recipe(audit.name, lambda: audit)


@dataclass(frozen=True, slots=True)
class Row:
    """An audit's name, kind, attack and paper claim, as in `Audit`, and its result, as plain values."""

    name: str
    kind: Kind
    about: str
    paper_claim: Cost | None
    result: AuditResult

    @property
    def paper_bound(self) -> float:
        """Lower bound on epsilon at the delta of the paper's claim; 0 where there is no such claim."""
        claim, result = self.paper_claim, self.result
        if claim is None:
            return 0.0
        return epsilon_lower_bound(*result.hits, result.runs, delta_value(claim.delta_units), result.false_alarm)

    @property
    def claim_broken(self) -> bool | None:
        """Whether the attack broke the paper's claim; None where there is no such claim."""
        claim = self.paper_claim
        return None if claim is None else self.paper_bound > epsilon_float(claim.epsilon_micro)

    @property
    def passed(self) -> bool:
        """Whether every bound is within the claim, and a paper's claim that must be broken is broken."""
        return self.result.passed and self.claim_broken is not False

    @property
    def verdict(self) -> str:
        """The verdict for the table."""
        if self.result.structure:
            return f"NOT INDEPENDENT: {self.result.structure}"
        if not self.result.passed:
            return "EXCEEDS the claim"
        if self.claim_broken is None:
            return f"within the claim; {self.result.remark}" if self.result.remark else "within the claim"
        return f"{NOT_PRIVATE}, claim broken" if self.claim_broken else "the paper's claim was not broken"

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; ``claim_broken`` is null where there is no paper's claim to break."""
        result, claim = self.result, self.paper_claim
        return {
            "name": self.name,
            "kind": self.kind,
            "attack": self.about,
            "claimed": _amounts(result.claimed),
            "paper_claims": None if claim is None else {**_amounts(claim), "epsilon_lower_bound": self.paper_bound},
            "claim_broken": self.claim_broken,
            "epsilon_lower_bound": result.epsilon_lower_bound,
            "calibrated_lower_bound": result.calibrated_lower_bound,
            "confidence": 1 - result.false_alarm,
            "false_alarm": result.false_alarm,
            "runs": result.runs,
            "structure": result.structure,
            "verdict": self.verdict,
            "passed": self.passed,
        }

    def cells(self) -> tuple[str, ...]:
        """The cells of the table: name, claim, bounds, confidence, runs, verdict."""
        result = self.result
        calibrated = result.calibrated_lower_bound
        claim = result.claimed if self.paper_claim is None else self.paper_claim
        bound = result.epsilon_lower_bound if self.paper_claim is None else self.paper_bound
        return (
            self.name,
            f"{epsilon_text(claim.epsilon_micro)}, {delta_text(claim.delta_units, 2)}",
            f"{bound:.3f}",
            "-" if calibrated is None else f"{calibrated:.3f}",
            f"1 - {result.false_alarm:g}",
            f"{result.runs:,}",
            self.verdict,
        )


HEADINGS = ("mechanism", "claim (epsilon, delta)", "bound", "bound by curve", "confidence", "runs", "verdict")


def _amounts(cost: Cost) -> dict[str, Any]:
    return {
        "epsilon": epsilon_float(cost.epsilon_micro),
        "delta": float_up(delta_value(cost.delta_units)),
        "epsilon_micro": cost.epsilon_micro,
        "delta_units": str(cost.delta_units),
    }
