"""The words and number formats that pages, pictures and terminal tables share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.report.results import RoleCheck, StatedGuarantee

MARK_MEANINGS = {
    REPRODUCIBLE: "The keys come from a seed. Anyone who knows the seed can remove the noise. For experiments only.",
    NOT_PRIVATE: "Not all that is released is as private as stated: content of the data that is replayed leaves "
    "un-noised, or the release follows a paper whose stated guarantee does not hold. The guarantee below says which.",
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
_RUNNERS = {"direct": "all parts in one process", "stream": "broker and workers as processes of their own"}
_UNITS = {"seconds": "s", "bytes": "B"}


_MEASURES = {
    **THROUGHPUT_NAMES,
    # A replay sends requests of very many users at once, so a request mostly waits for others.
    "decision_seconds_p50": "Asked to answered in the replay's queue, half within",
    "decision_seconds_p99": "Asked to answered in the replay's queue, 99 % within",
}


EXACT = "exact figures of the dataset that is replayed, without noise"
"""The label that every table, CSV file and picture with rewards, errors or exact sums carries (PRIVACY.md)."""


class RunFields(Protocol):
    """The fields that the results of all systems have."""

    @property
    def runner(self) -> str: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def deployment(self) -> str: ...
    @property
    def config_digest(self) -> str: ...
    @property
    def privacy(self) -> StatedGuarantee: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def throughput(self) -> Mapping[str, float]: ...
    @property
    def verify(self) -> Mapping[str, RoleCheck] | None: ...
    @property
    def environment(self) -> Mapping[str, Any]: ...


def number(value: float) -> str:
    """A number with four significant digits below 1,000, from there a whole number with separators."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def unit(name: str) -> str:
    """The unit in a key such as ``decision_seconds_p99``; empty for a rate or a count."""
    words = name.split("_")
    return "" if "per" in words else next((_UNITS[word] for word in words if word in _UNITS), "")


def quantity(name: str, value: float) -> str:
    """A number with the unit in its key; bytes are shown as megabytes."""
    sign = unit(name)
    if sign == "B":
        return f"{number(value / 1e6)} MB"
    return f"{number(value)} {sign}".rstrip()


def measure_name(name: str) -> str:
    """The key of a measured quantity as words, without its unit."""
    words = [word for word in name.split("_") if not unit(name) or word not in _UNITS]
    return _MEASURES.get(name) or plain_name("_".join(words))


def plain_name(name: str) -> str:
    """A key such as ``model_adopted`` as words."""
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def seed_text(result: RunFields) -> str:
    """The seed, or that there is none."""
    return "none" if result.seed is None else str(result.seed)


def deployment_text(result: RunFields) -> str:
    """Name and kind of the deployment."""
    return f"{result.deployment} ({result.privacy.values['deployment']})"


def provenance(result: RunFields, figures: str = EXACT) -> tuple[tuple[str, str], ...]:
    """The facts that say where figures come from, for the end of a page and the foot of every picture file.

    Args:
        result: the result with the figures.
        figures: the label of the figures.
    """
    guarantee = "; ".join((result.privacy.summary, *result.privacy.marks))
    made_with = ", ".join(f"{name} {value}" for name, value in result.environment.items())
    return (
        ("Figures", figures),
        ("Seed", seed_text(result)),
        ("Guarantee", guarantee),
        ("Deployment", deployment_text(result)),
        ("Configuration digest", result.config_digest),
        ("Run", f"{_RUNNERS.get(result.runner, result.runner)}; {made_with}"),
    )


def verify_sentence(verify: Mapping[str, RoleCheck] | None) -> str:
    """A sentence with the worst finding of `verify` over all roles."""
    if not verify:
        return "Verify did not run."
    worst = overall_status(verify.values())
    return f"Verify: {worst} ({STATUS_MEANINGS[worst]})."


def verify_text(verify: Mapping[str, RoleCheck] | None) -> str:
    """A line that says how many records `verify` found equal, tied and changed."""
    if verify is None:
        return "not asked for"
    found = verify.values()
    equal, ties, changed = (sum(getattr(one, name) for one in found) for name in ("equal", "ties", "changed"))
    return f"{count_text(equal, 'record')} equal, {count_text(ties, 'float tie')}, {changed} changed"


def overall_status(checks: Iterable[RoleCheck]) -> str:
    """The worst status of several checks."""
    found = {check.status for check in checks}
    return next(status for status in ("changed", "uncheckable", "float tie", "equal") if status in found)


def provenance_lines(result: RunFields, figures: str = EXACT) -> list[str]:
    """`provenance` as lines below a picture."""
    return [f"{name}: {value}." for name, value in provenance(result, figures)]
