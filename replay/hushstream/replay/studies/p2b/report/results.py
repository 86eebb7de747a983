"""The result of one run as frozen values, with the checks that keep exact figures out of a live run's report.

Classes of the fields (PRIVACY.md, rule 11): the guarantee and the settings are public. Throughput and the findings of
verify follow from records per topic (slot-public). Every count has its own class (`counts`). Rewards by condition,
their rows and the cells are exact figures on content (zone-private), so they exist for public data only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hushstream.replay.report.counts import require_classed, slot_public
from hushstream.replay.report.payoff import Payoff, reached
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.report.summaries import Comparison
from hushstream.replay.report.values import BadResult, require, whole

COLD = "cold"
WARM_NONPRIVATE = "warm_nonprivate"
WARM_PRIVATE = "warm_private"
CONDITIONS = (COLD, WARM_NONPRIVATE, WARM_PRIVATE)
"""The conditions of the comparison, in the order in which they are shown."""

ReleaseMode = Literal["slot-sums", "tuples", "paper"]
_DIGEST = re.compile(r"[0-9a-f]{32}")


def _finite(name: str, value: object, low: float = -math.inf) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= low
    require(ok, name, "a finite number" if low == -math.inf else f"a finite number >= {low:g}", value)


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """Mean reward of one condition's users at one interaction.

    Attributes:
        condition: one of `CONDITIONS`.
        round: number of the user's interaction, from 1.
        users: how many users the mean is over.
        mean: mean reward, in [0, 1].
        ci95: half-width of the 95 % interval.
    """

    condition: str
    round: int
    users: int
    mean: float
    ci95: float

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require(self.condition in CONDITIONS, "row.condition", f"one of {', '.join(CONDITIONS)}", self.condition)
        whole("row.round", self.round, 1)
        whole("row.users", self.users, 1)
        _finite("row.mean", self.mean)
        _finite("row.ci95", self.ci95, 0)


@dataclass(frozen=True, slots=True)
class ConditionSummary:
    """Mean reward of one condition over users and interactions; ``ci95`` is the half-width of its 95 % interval."""

    mean: float
    ci95: float
    users: int

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        _finite("condition.mean", self.mean)
        _finite("condition.ci95", self.ci95, 0)
        whole("condition.users", self.users, 1)


@dataclass(frozen=True, slots=True)
class CellRow:
    """The two sums of one (code, arm) cell over all windows, exact and as released, in reward levels."""

    code: int
    arm: int
    exact_ones: int
    exact_zeros: int
    noised_ones: int
    noised_zeros: int

    def __post_init__(self) -> None:
        """Refuse impossible values; only released sums may be negative."""
        for name in ("code", "arm", "exact_ones", "exact_zeros"):
            whole(f"cell.{name}", getattr(self, name))
        for name in ("noised_ones", "noised_zeros"):
            whole(f"cell.{name}", getattr(self, name), None)


@dataclass(frozen=True, slots=True)
class ComparisonArm:
    """The deployment whose guarantee is shown beside figures without privacy.

    Attributes:
        deployment: its name.
        privacy: its guarantee.
    """

    deployment: str
    privacy: StatedGuarantee

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "deployment": self.deployment,
            "marks": list(self.privacy.marks),
            "privacy": {**self.privacy.values, "text": list(self.privacy.lines)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Everything that a report shows about one run.

    Attributes:
        system: its name.
        dataset: the world or dataset that was played.
        runner: ``direct`` or ``stream``.
        seed: seed of the world; None where there is none.
        deployment: the deployment's name; its kind (hosted, edge) stands in the guarantee.
        config_digest: 32 hexadecimal digits.
        public_dataset: whether the data is public; a live run (False) shows no exact figure on content.
        release_mode: what the shuffler releases.
        sampling: probability that a slot is kept.
        conditions: reward by condition. Zone-private.
        rows: reward by condition and interaction. Zone-private.
        privacy: the guarantee of the private condition.
        counts: by the names of `counts.COUNT_CLASSES`.
        throughput: ``events_per_second``, ``decisions_per_second``, ``seconds`` and so on, finite and >= 0.
        comparison_arm: the deployment that gave the figures without privacy; None where it was not played.
        kept: mean reward of warm private users over that of warm non-private ones; None without both. Zone-private.
        payoff: warm private users compared with cold ones; None without both. Zone-private.
        cells: exact and released sums; None if not collected. Zone-private.
        verify: the findings of `verify`, by role; None if it did not run.
        marks: warnings; those of the guarantee are added.
        environment: versions and cores.
    """

    system: str
    dataset: str
    runner: str
    seed: int | None
    deployment: str
    config_digest: str
    public_dataset: bool
    release_mode: ReleaseMode
    sampling: float
    privacy: StatedGuarantee
    conditions: Mapping[str, ConditionSummary] = field(default_factory=dict)
    rows: tuple[ConditionRow, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    throughput: Mapping[str, float] = field(default_factory=dict)
    comparison_arm: ComparisonArm | None = None
    kept: Comparison | None = None
    payoff: Payoff | None = None
    cells: tuple[CellRow, ...] | None = None
    verify: Mapping[str, RoleCheck] | None = None
    marks: tuple[str, ...] = ()
    environment: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def answers(self) -> tuple[str, ...]:
        """The first lines of every report: the private result, and whether it pays."""
        private = self.conditions.get(WARM_PRIVATE)
        if private is None:
            return ()
        what = f"Users who start from the private model earn {private.mean:.3f} a visit"
        if self.kept is not None:
            share = self.kept
            what = (
                f"{100 * share.ratio:.0f} % of what a model without privacy earns ({100 * share.low:.0f} to "
                f"{100 * share.high:.0f} %)"
            )
        first = reached(what, self.privacy)
        return (first,) if self.payoff is None else (first, self.payoff.sentence)

    def __post_init__(self) -> None:
        """Refuse impossible values, and exact figures on content in a live run.

        Raises:
            BadResult: names the field, what it accepts and what it got.
        """
        self._check_settings()
        self._check_figures()
        if not self.public_dataset:
            self._refuse_exact_figures()
        # The guarantee's warnings are added here, so that no caller can leave them out.
        object.__setattr__(self, "marks", tuple(dict.fromkeys((*self.privacy.marks, *self.marks))))

    def _check_settings(self) -> None:
        for name in ("system", "dataset", "runner", "deployment"):
            value = getattr(self, name)
            require(isinstance(value, str) and bool(value), name, "a non-empty text", value)
        if self.seed is not None:
            whole("seed", self.seed)
        require(
            isinstance(self.config_digest, str) and bool(_DIGEST.fullmatch(self.config_digest)),
            "config_digest",
            "32 hexadecimal digits",
            self.config_digest,
        )
        modes = get_args(ReleaseMode)
        require(self.release_mode in modes, "release_mode", f"one of {', '.join(modes)}", self.release_mode)
        _finite("sampling", self.sampling, 0)
        require(0 < self.sampling <= 1, "sampling", "a probability above 0 and at most 1", self.sampling)
        require(isinstance(self.public_dataset, bool), "public_dataset", "true or false", self.public_dataset)

    def _check_figures(self) -> None:
        unknown = sorted({*self.conditions, *(row.condition for row in self.rows)} - set(CONDITIONS))
        require(not unknown, "conditions", f"some of {', '.join(CONDITIONS)}", ", ".join(unknown))
        keys = [(row.condition, row.round) for row in self.rows]
        require(len(set(keys)) == len(keys), "rows", "one row for each condition and interaction", "two of one")
        require_classed(self.counts)
        for name, count in self.counts.items():
            whole(f"counts.{name}", count)
        for name, value in self.throughput.items():
            _finite(f"throughput.{name}", value, 0)

    def _refuse_exact_figures(self) -> None:
        shown = "the dataset must be marked public to show it"
        if WARM_NONPRIVATE in self.conditions or any(row.condition == WARM_NONPRIVATE for row in self.rows):
            raise BadResult(f"conditions: expected no {WARM_NONPRIVATE} condition in a live run; {shown}")
        if self.conditions or self.rows:
            raise BadResult(f"conditions: expected no rewards in a live run (exact figures on content); {shown}")
        if self.kept is not None or self.payoff is not None:
            raise BadResult(f"payoff: expected none in a live run (exact figures on content); {shown}")
        if self.cells is not None:
            raise BadResult(f"cells: expected none in a live run (exact figures on content); {shown}")
        private = sorted(set(self.counts) - set(slot_public(self.counts)))
        if private:
            raise BadResult(f"counts: expected slot-public counts in a live run, got {', '.join(private)}; {shown}")
