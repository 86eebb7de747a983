"""A row of the table of audits: what is attacked, by which test, in how many runs; its result, and the table of all.

A row names a system's release, neighbouring recordings of it, and a test of `hushstream.replay.audits.tests`, which
holds the statistic and its law. Each result has its power beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rich.table import Table

from hushstream.privacy.amounts import Cost, delta_text, delta_value, epsilon_float, epsilon_text
from hushstream.privacy.audits import AuditResult, delta_lower_bound, epsilon_lower_bound
from hushstream.privacy.promises.promise import NOT_PRIVATE, amounts
from hushstream.replay.audits.tests import Test

Kind = Literal["mechanism", "counter", "release", "role", "attack"]
Effort = Literal["quick", "full", "thorough"]

HORIZON = 32
"""How many leaves the attacked counters of small deployments have."""

PLACES_RUNS = 300
"""Enough runs to detect half the noise at any place, and shared noise (`tests/audits/test_power.py`)."""

FEWER_RUNS = 200
"""Runs that are enough where sizes vary little: for Gaussian noise, and for vectors."""


@dataclass(frozen=True, eq=False)
class Audit:
    """An audit that can be run.

    Attributes:
        name: its name, which does not change; used in JSON and for ``--only``.
        kind: what is audited.
        about: the attack in a few words.
        runs: releases on each neighbour in the quick version.
        make: makes the test when it is needed, because tables of noise may take seconds.
        factor: the full version has this many times the runs; the thorough one ten times as many as the full one.
        paper_claim: a paper's claim for this release that the product does not make; the attack must break it.
        subjects: what is attacked: plans of counters, configurations of releases, functions and objects that draw. A
            check compares them with all that exist.
    """

    name: str
    kind: Kind
    about: str
    runs: int
    make: Callable[[], Test]
    factor: int = 4
    paper_claim: Cost | None = None
    subjects: tuple[object, ...] = ()

    @cached_property
    def test(self) -> Test:
        """The test of this row, made once."""
        return self.make()

    @property
    def claim(self) -> str:
        """What is attacked: epsilon and delta that the release claims, or its paper."""
        said = claim_text(self.test.claimed if self.paper_claim is None else self.paper_claim)
        return said if self.paper_claim is None else f"{said} (its paper's; expected to fail)"

    def result(self, effort: Effort, false_alarm: float) -> AuditResult:
        """Run the test."""
        factor = {"quick": 1, "full": self.factor, "thorough": 10 * self.factor}[effort]
        return self.test(self.runs * factor, false_alarm)

    def __call__(self, effort: Effort, false_alarm: float) -> Row:
        """Run the test, and compute its power."""
        result = self.result(effort, false_alarm)
        return Row(self.name, self.kind, self.about, self.paper_claim, result, self.test.power(result))


def claim_text(cost: Cost) -> str:
    """Epsilon and delta."""
    return f"{epsilon_text(cost.epsilon_micro)}, {delta_text(cost.delta_units, 2)}"


def noise_row(name: str, places: str, make: Callable[[], Test], runs: int = PLACES_RUNS) -> Audit:
    """The row that tests the noise of a role place by place."""
    return Audit(name, "role", f"noise by itself and against all others: {places}", runs, make, factor=1)


def fork_row(name: str, places: str, make: Callable[[], Test], runs: int = PLACES_RUNS) -> Audit:
    """The row of a role's journal that was rolled back."""
    about = f"a journal rolled back, other contents or other ids in it: {places}"
    return Audit(name, "role", about, runs, make, factor=1)


@dataclass(frozen=True, slots=True)
class Row:
    """An audit's name, kind, attack and paper claim, as in `Audit`, and its result and power, as plain values."""

    name: str
    kind: Kind
    about: str
    paper_claim: Cost | None
    result: AuditResult
    power: str

    @property
    def paper_bound(self) -> float:
        """Lower bound on epsilon at the delta of the paper's claim; 0 where there is no such claim."""
        claim, result = self.paper_claim, self.result
        if claim is None:
            return 0.0
        return epsilon_lower_bound(*result.hits, result.runs, delta_value(claim.delta_units), result.false_alarm)

    @property
    def paper_delta_bound(self) -> float:
        """Lower bound on delta at the epsilon of the paper's claim; 0 where there is no such claim."""
        claim, result = self.paper_claim, self.result
        if claim is None:
            return 0.0
        return delta_lower_bound(*result.hits, result.runs, epsilon_float(claim.epsilon_micro), result.false_alarm)

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
            return "within the claim"
        return f"{NOT_PRIVATE}, claim broken" if self.claim_broken else "the paper's claim was not broken"

    def cells(self) -> tuple[str, ...]:
        """The cells of the table: name, claim, bounds, confidence, runs, power, verdict."""
        result = self.result
        calibrated = result.calibrated_lower_bound
        claim = result.claimed if self.paper_claim is None else self.paper_claim
        bound = f"{result.epsilon_lower_bound:.3f}"
        if self.paper_claim is not None:
            bound = f"{self.paper_bound:.3f}, or delta {self.paper_delta_bound:.3f}"
        return (
            self.name,
            claim_text(claim),
            bound,
            "-" if calibrated is None else f"{calibrated:.3f}",
            f"1 - {result.false_alarm:g}",
            f"{result.runs:,}",
            self.power,
            self.verdict,
        )


def as_table(rows: Sequence[Row]) -> Table:
    """One line for each audit."""
    headings = (
        "mechanism",
        "claim (epsilon, delta)",
        "bound",
        "bound by curve",
        "confidence",
        "runs",
        "may miss below",
    )
    table = Table(*headings, "verdict", caption=_caption(rows), caption_justify="left")
    for row in rows:
        table.add_row(*row.cells(), style=None if row.passed else "bold red")
    return table


def as_json(rows: Sequence[Row], effort: Effort) -> dict[str, Any]:
    """Stable keys: effort, passed, false_alarm_of_all, audits; ``claim_broken`` is null without a paper's claim."""
    return {
        "effort": effort,
        "passed": all(row.passed for row in rows),
        "false_alarm_of_all": sum(row.result.false_alarm for row in rows),
        "audits": list(map(row_json, rows)),
    }


def row_json(row: Row) -> dict[str, Any]:
    """Plain values under stable keys."""
    result, claim = row.result, row.paper_claim
    return {
        "name": row.name,
        "kind": row.kind,
        "attack": row.about,
        "claimed": amounts(result.claimed),
        "paper_claims": None
        if claim is None
        else {
            **amounts(claim),
            "epsilon_lower_bound": row.paper_bound,
            "delta_lower_bound": row.paper_delta_bound,
        },
        "claim_broken": row.claim_broken,
        "epsilon_lower_bound": result.epsilon_lower_bound,
        "calibrated_lower_bound": result.calibrated_lower_bound,
        "confidence": 1 - result.false_alarm,
        "false_alarm": result.false_alarm,
        "runs": result.runs,
        "power": row.power,
        "structure": result.structure,
        "verdict": row.verdict,
        "passed": row.passed,
    }


RELATIONS = (
    "Claims are for content against null (zero-out) in p2b, pdol and bgt, for one content against another (replace-one)"
    " in colin, pdap and pdol-gossip-sent and -paper."
)


def _caption(rows: Sequence[Row]) -> str:
    failed = [row.name for row in rows if not row.passed]
    caption = (
        f"{len(failed)} of {len(rows)} fail: {', '.join(failed)}." if failed else f"All {len(rows)} behave as expected."
    )
    broken = [row.name for row in rows if row.claim_broken]
    if broken:
        caption += f" The claims of {' and '.join(broken)}, calibrated as in their papers, are broken, as they must be."
    return (
        f"{caption} {RELATIONS} Bound: epsilon (or delta) is at least this, whatever the mechanism. Bound by curve:"
        " where noise of a known form protects, the epsilon that it is calibrated to is at least this (by its exact"
        " trade-off curve). Runs: on"
        " each of two neighbours. May miss below: a smaller true epsilon, or rarer leak, is found with probability"
        " below 0.9; in rows of papers, one beyond our own bound for the paper's form."
    )
