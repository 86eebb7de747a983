"""The words for a run's conditions that the page, the pictures and the terminal table share."""

from __future__ import annotations

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.report.wording import EXACT
from hushstream.replay.studies.p2b.report.results import (
    COLD,
    WARM_NONPRIVATE,
    WARM_PRIVATE,
    ConditionSummary,
    RunResult,
)

CONDITION_NAMES = {COLD: "cold", WARM_NONPRIVATE: "warm, NOT PRIVATE", WARM_PRIVATE: "warm, private"}
CONDITION_STARTS = {
    COLD: "no shared model; each user learns alone",
    WARM_NONPRIVATE: "a model of the exact interactions (public data only)",
    WARM_PRIVATE: "a model of the private release",
}


RELEASED = "released figures and public counts, none of them exact"
_EXACT_CELLS = f"columns exact_ones and exact_zeros: {EXACT}; noised_ones and noised_zeros: released"


def policy_name(policy: str) -> str:
    """A condition in words; other policies are called by their names."""
    return CONDITION_NAMES.get(policy, policy)


def figures_of(result: RunResult) -> str:
    """The label of a run's figures; figures without privacy carry the name and the warnings of their deployment."""
    if not result.public_dataset:
        return RELEASED
    if not any(row.condition == WARM_NONPRIVATE for row in result.rows) and WARM_NONPRIVATE not in result.conditions:
        return EXACT
    return f"{EXACT}; {CONDITION_NAMES[WARM_NONPRIVATE]}: {_of_arm(result)}"


def figures_of_rows(result: RunResult) -> list[str]:
    """The labels of the rows of a run."""
    return [f"{_of_arm(result)}; {EXACT}" if row.condition == WARM_NONPRIVATE else EXACT for row in result.rows]


def figures_of_cells(result: RunResult) -> list[str]:
    """The labels of the cells of a run, which have exact and released sums."""
    return [_EXACT_CELLS] * len(result.cells or ())


def _of_arm(result: RunResult) -> str:
    """The name and warnings of the deployment with exact interactions."""
    arm = result.comparison_arm
    labels = (NOT_PRIVATE,) if arm is None else (*arm.privacy.marks, f"deployment {arm.deployment}")
    return "; ".join(labels)


def interval(summary: ConditionSummary) -> str:
    """The 95 % interval of a condition's mean."""
    return f"{summary.mean - summary.ci95:.4f} to {summary.mean + summary.ci95:.4f}"


def title(result: RunResult) -> str:
    """The system and the data of a run."""
    return f"{result.system} on {result.dataset}"
