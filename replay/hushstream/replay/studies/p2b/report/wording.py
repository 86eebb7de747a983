"""The words for a run's conditions that the page, the pictures and the terminal table share."""

from __future__ import annotations

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
    WARM_PRIVATE: "a model of what the private release lets through",
}


def interval(summary: ConditionSummary) -> str:
    """The 95 % interval of a condition's mean."""
    return f"{summary.mean - summary.ci95:.4f} to {summary.mean + summary.ci95:.4f}"


def title(result: RunResult) -> str:
    """What was run on what."""
    return f"{result.system} on {result.dataset}"
