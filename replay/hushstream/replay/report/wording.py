"""The words and number formats that the page, the pictures and the terminal table share."""

from __future__ import annotations

from collections.abc import Iterable

from hushstream.privacy.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.report.results import COLD, WARM_NONPRIVATE, WARM_PRIVATE, ConditionSummary, RoleCheck, RunResult

CONDITION_NAMES = {COLD: "cold", WARM_NONPRIVATE: "warm, non-private", WARM_PRIVATE: "warm, private"}
CONDITION_STARTS = {
    COLD: "no shared model; each user learns alone",
    WARM_NONPRIVATE: "a model of the exact interactions (public data only)",
    WARM_PRIVATE: "a model of what the private release lets through",
}

MARK_MEANINGS = {
    REPRODUCIBLE: "The keys come from a seed. Whoever knows the seed can remove the noise. For experiments only.",
    NOT_PRIVATE: "Not all that is released is as private as stated: content of a public dataset leaves un-noised, or "
    "the release follows a paper whose stated guarantee does not hold. The guarantee below says which.",
}

STATUS_MEANINGS = {
    "equal": "every published record was computed again and has the same bytes",
    "float tie": "equal but for decisions between arms whose scores are equal within the stated margin",
    "changed": "at least one published record differs from what its inputs give",
    "uncheckable": "inputs of at least one record are no longer kept",
}

THROUGHPUT_NAMES = {
    "events_per_second": "Events per second",
    "decisions_per_second": "Decisions per second",
    "seconds": "Duration",
}
_UNITS = {"seconds": "s", "bytes": "B"}


def number(value: float) -> str:
    """Four significant digits below 1,000, whole numbers with separators from there."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def unit(name: str) -> str:
    """The unit that a key such as ``decision_seconds_p99`` names; empty for a rate or a count."""
    words = name.split("_")
    return "" if "per" in words else next((_UNITS[word] for word in words if word in _UNITS), "")


def quantity(name: str, value: float) -> str:
    """A number with the unit that its name says; bytes as megabytes."""
    sign = unit(name)
    if sign == "B":
        return f"{number(value / 1e6)} MB"
    return f"{number(value)} {sign}".rstrip()


def measure_name(name: str) -> str:
    """The key of a measured quantity as words, without its unit."""
    words = [word for word in name.split("_") if not unit(name) or word not in _UNITS]
    return THROUGHPUT_NAMES.get(name) or plain_name("_".join(words))


def plain_name(name: str) -> str:
    """A key such as ``model_adopted`` as words."""
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def interval(summary: ConditionSummary) -> str:
    """The 95 % interval of a condition's mean."""
    return f"{summary.mean - summary.ci95:.4f} to {summary.mean + summary.ci95:.4f}"


def title(result: RunResult) -> str:
    """What was run on what."""
    return f"{result.system} on {result.dataset}"


def seed_text(result: RunResult) -> str:
    """The seed, or that there is none."""
    return "none" if result.seed is None else str(result.seed)


def deployment_text(result: RunResult) -> str:
    """Name and kind of the deployment."""
    return f"{result.deployment} ({result.privacy.values['deployment']})"


def provenance(result: RunResult) -> tuple[tuple[str, str], ...]:
    """What every caption says besides what is shown: seed, guarantee, deployment, configuration digest."""
    guarantee = "; ".join((result.privacy.summary, *result.privacy.marks))
    return (
        ("Seed", seed_text(result)),
        ("Guarantee", guarantee),
        ("Deployment", deployment_text(result)),
        ("Configuration digest", result.config_digest),
    )


def verify_sentence(result: RunResult) -> str:
    """What `verify` found over all roles."""
    if not result.verify:
        return "Verify did not run."
    worst = overall_status(result.verify.values())
    return f"Verify: {worst} ({STATUS_MEANINGS[worst]})."


def overall_status(checks: Iterable[RoleCheck]) -> str:
    """The worst status of several checks."""
    found = {check.status for check in checks}
    return next(status for status in ("changed", "uncheckable", "float tie", "equal") if status in found)
