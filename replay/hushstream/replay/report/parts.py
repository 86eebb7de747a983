"""Parts that the pages of all systems have: guarantee, checks, counts and speed.

*Counts.* The class of every count that a result may carry (CONTRIBUTING.md, rule 11).

*Slot-public* counts follow from what the guarantee says it does not protect: slots, windows, records per topic.
*Zone-private* counts tell something of content (joins, nulls, dead letters) and are shown for public data only. A
count that is on neither list has no class, and a result that carries it is refused.

Compares means by their ratio, with a 95 % interval.

*Statement.* Makes a deployment's statement as one page of HTML that loads nothing from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from markupsafe import escape
from numpy.typing import NDArray
from scipy.special import stdtrit

from hushstream.engine.declare.outcomes import Refusal
from hushstream.ops.statement import Statement
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.page import FIRST, groups_of
from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE, Guarantee
from hushstream.privacy.promises.sentence import Odds as Expected
from hushstream.replay.report.frame import (
    Block,
    Bullets,
    Cell,
    Facts,
    Folded,
    Odds,
    Page,
    Section,
    Table,
    Tile,
    Words,
    html,
    page_title,
)
from hushstream.replay.result import BadResult, Headline
from hushstream.schemas.rows import Reason
from hushstream.systems.catalogue import kinds


@dataclass(frozen=True, slots=True)
class RoleCheck:
    """What `verify` found when it computed a role's published records again.

    Attributes:
        equal: records with the same bytes.
        ties: records that differ in a decision only, between scores that are equal within the stated margin.
        changed: records that differ.
        uncheckable: records whose inputs retention has deleted.
    """

    equal: int
    ties: int = 0
    changed: int = 0
    uncheckable: int = 0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if min(self.equal, self.ties, self.changed, self.uncheckable) < 0:
            raise BadResult(f"verify: expected counts of records, got {self}")

    def __add__(self, other: RoleCheck) -> RoleCheck:
        """Add the counts of two checks."""
        return RoleCheck(
            self.equal + other.equal,
            self.ties + other.ties,
            self.changed + other.changed,
            self.uncheckable + other.uncheckable,
        )

    @property
    def status(self) -> Literal["equal", "float tie", "changed", "uncheckable"]:
        """The worst finding."""
        if self.changed:
            return "changed"
        if self.uncheckable or not self.equal + self.ties:
            return "uncheckable"
        return "float tie" if self.ties else "equal"


def verify_json(verify: Mapping[str, RoleCheck] | None) -> dict[str, Any] | None:
    """The findings of `verify` for ``results.json``, the worst status first; None where `verify` did not run."""
    return None if verify is None else {role: {"status": one.status, **asdict(one)} for role, one in verify.items()}


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

_UNITS = {"seconds": "s", "bytes": "B"}


_MEASURES = {
    "events_per_second": "Events per second",
    "decisions_per_second": "Decisions per second",
    "seconds": "Duration",
    # A replay sends requests of very many users at once, so a request mostly waits for others.
    "decision_seconds_p50": "Asked to answered in the replay's queue, half within",
    "decision_seconds_p99": "Asked to answered in the replay's queue, 99 % within",
}


EXACT = "exact figures of the dataset that is replayed, without noise"
"""The label that every table, CSV file and picture with rewards, errors or exact sums carries (PRIVACY.md)."""


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


NORMAL_975 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of one condition's mean to another's, with a 95 % interval."""

    ratio: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Stable keys ratio, low, high."""
        return {"ratio": self.ratio, "low": self.low, "high": self.high}


def paired(above: NDArray[np.float64], below: NDArray[np.float64]) -> Comparison | None:
    """The ratio of two means over the same units, with a delta-method interval; None if the mean of ``below`` is 0.

    The units (users, visits, records) are the sample. The interval does not cover the randomness of what a run has
    learned.

    Args:
        above: (n,), a value of each unit, the numerator.
        below: (n,), the other value of the same units, at least 0, the denominator.
    """
    total = float(below.sum())
    if total <= 0 or len(below) < 2:
        return None
    ratio = float(above.sum()) / total
    spread = float((above - ratio * below).std(ddof=1)) * math.sqrt(len(below))
    half = NORMAL_975 * spread / total
    return Comparison(ratio, ratio - half, ratio + half)


def ratio(what: str, found: Comparison | None) -> Headline | None:
    """The headline of a comparison; None without a comparison."""
    return None if found is None else Headline(what, found.ratio, found.low, found.high)


def gain_kept(
    private: NDArray[np.float64],
    exact: NDArray[np.float64],
    own: NDArray[np.float64],
    users: NDArray[np.int64] | None = None,
) -> Comparison | None:
    """The share of the gain over own learning that is kept: (private - own) / (exact - own), of means.

    With Fieller's interval over users (Fieller 1954): the shares r at which the mean of
    (private - own) - r (exact - own) does not differ from 0 significantly. None where the gain
    without privacy is not significantly above 0: a share of nothing says nothing.

    Args:
        private: (n,), values of a private policy.
        exact: (n,), values of the same model without privacy.
        own: (n,), values of users who learn without one another.
        users: (n,) whole numbers, whose each value is; None where each is of another user.
    """
    rows = len(own)
    place = np.arange(rows) if users is None else users
    gains = np.stack([private - own, exact - own])
    means = gains.mean(axis=1)
    left = np.stack([np.bincount(place, one - mean) for one, mean in zip(gains, means, strict=True)])
    count = left.shape[1]
    if count < 2:
        return None
    limit = float(stdtrit(count - 1, 0.975)) ** 2 * count / (count - 1) / rows**2
    ours, both, whole = (limit * float((left[i] * left[j]).sum()) for i, j in ((0, 0), (0, 1), (1, 1)))
    leading = float(means[1]) ** 2 - whole
    if means[1] <= 0 or leading <= 0:
        return None
    middle = float(means[0] * means[1]) - both
    root = math.sqrt(max(0.0, middle**2 - leading * (float(means[0]) ** 2 - ours)))
    return Comparison(float(means[0] / means[1]), (middle - root) / leading, (middle + root) / leading)


CountClass = Literal["slot-public", "zone-private"]

RECORDS_PREFIX = "records_"
"""``records_<topic>`` counts the records of one topic."""

_PUBLIC_PLAN = ("contributors", "evaluated", "users", "contexts", "decisions", "slots", "windows", "models")
_PRIVATE_TOTALS = ("clicks", "reports", "null_slots", "sampled", "withheld", "suppressed", "dead_letters")


def _classes() -> dict[str, CountClass]:
    classes: dict[str, CountClass] = {}
    for name in (*Refusal, *Reason, *_PRIVATE_TOTALS):
        classes[str(name)] = "zone-private"
    for kind in kinds().values():
        for role in kind.roles:
            for name, of in role.outcomes.items():
                classes[name] = "slot-public" if of == "slot-public" else "zone-private"
        for topic in kind.topics:
            # How many clicks there were, and how many records were refused, tells something of content.
            private = topic.private_lag or topic.holds_dead_letters
            classes[RECORDS_PREFIX + topic.name] = "zone-private" if private else "slot-public"
    return {**classes, **dict.fromkeys(_PUBLIC_PLAN, "slot-public")}


COUNT_CLASSES: Mapping[str, CountClass] = _classes()


def require_classed(counts: Mapping[str, int]) -> None:
    """Refuse a count without a privacy class, as it is not decided who may see it.

    Raises:
        BadResult: names those without a class.
    """
    unclassed = sorted(set(counts) - set(COUNT_CLASSES))
    if unclassed:
        raise BadResult(f"counts: expected names that have a privacy class, got {', '.join(unclassed)}")


def slot_public(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that a live run may show."""
    return {name: value for name, value in counts.items() if COUNT_CLASSES.get(name) == "slot-public"}


def counts_json(counts: Mapping[str, int]) -> dict[str, Any]:
    """Counts and, under the same names, the privacy class of each, for ``results.json``."""
    return {"counts": dict(counts), "count_classes": {name: COUNT_CLASSES[name] for name in counts}}


_TONES = {"equal": "good", "float tie": "good", "changed": "bad", "uncheckable": "unsure"}
_SHOWN = {"slot-public": "", "zone-private": "for a replayed dataset only"}


def with_meanings(marks: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The warnings, each with its meaning."""
    return tuple((mark, MARK_MEANINGS.get(mark, "")) for mark in marks)


def verify_tile(verify: Mapping[str, RoleCheck] | None) -> list[Tile]:
    """The tile with the finding of `verify`; none where it was not asked for."""
    return [Tile("Recomputed from the logs", overall_status(verify.values()), ", ".join(verify))] if verify else []


def guarantee_section(privacy: Guarantee) -> Section:
    """The section with all groups of the guarantee, each fact once; the top of the page shows its sentence."""
    groups = groups_of(privacy)
    # Bars say the same as the line "In words".
    first = [line for group in groups if group.key in FIRST for line in group.lines if line.key != "belief"]
    said = "\n".join(line.text for line in first)
    lists = []
    for group in groups:
        lines = [one for one in group.lines if group.key not in _SUMMED or one.text not in said]
        if group.key not in FIRST and lines:
            texts = tuple(one.sentence if group.listed else str(one) for one in lines)
            lists.append(Bullets(group.title, texts))
    return Section(
        "guarantee",
        "What is guaranteed",
        (
            *odds_blocks(privacy.odds()),
            Words(privacy.marks),
            Facts(tuple((line.name, line.sentence) for line in first)),
            Folded("The mechanism, its noise, and every limit", tuple(lists)),
        ),
    )


_SUMMED = ("person", "unit", "conditions")
"""Groups whose facts the first groups say where a person's life is one unit, or where there is one condition."""


def odds_blocks(odds: Iterable[Expected]) -> list[Block]:
    """The picture of a guarantee; none where there is no guarantee."""
    shares = tuple((f"{one.label}{one.chance}", one.share) for one in odds)
    return [Odds(shares)] if shares else []


def verify_section(verify: Mapping[str, RoleCheck] | None) -> Section:
    """The section with the findings of `verify`, by role."""
    blocks: list[Block] = [Words((verify_sentence(verify),))]
    if verify:
        rows = [
            (
                Cell(role, one.status, _TONES[one.status]),
                *(Cell(number(count)) for count in (one.equal, one.ties, one.changed, one.uncheckable)),
            )
            for role, one in verify.items()
        ]
        columns = ("Worker and finding", "Equal", "Ties", "Changed", "Inputs deleted")
        blocks.append(Table("Published records, computed again from their inputs.", columns, tuple(rows)))
    return Section("verify", "Verify", tuple(blocks))


def counts_section(counts: Mapping[str, int]) -> Section:
    """The section with every count, and its privacy class."""
    ordered = sorted(counts.items(), key=lambda item: (COUNT_CLASSES[item[0]], item[0]))
    rows = tuple((Cell(_count_name(name), _SHOWN[COUNT_CLASSES[name]]), Cell(number(count))) for name, count in ordered)
    caption = (
        "How often each event happened. Counts that depend on users' contexts and rewards are shown for a "
        "replayed dataset only, never for a live deployment."
    )
    table = Table(caption, ("Count", "Value"), rows)
    return Section("counts", "Counts", (Folded(f"{len(rows)} counts", (table,)),))


_COUNT_NAMES = {"rewarded": "Rewards sent, also of 0", "shown": "Items shown"}


def _count_name(name: str) -> str:
    if name.startswith(RECORDS_PREFIX):
        return f"Records on topic {name.removeprefix(RECORDS_PREFIX)}"
    return _COUNT_NAMES.get(name) or plain_name(name)


def speed_section(measured: Mapping[str, float]) -> Section:
    """The section with the speed of a run; it shows the service time of a decision without its waiting time."""
    rows = [(measure_name(name), quantity(name, value)) for name, value in measured.items()]
    if measured.get("decisions") and "seconds" in measured:
        share = measured["seconds"] / measured["decisions"]
        rows.append(("Service time of a decision", f"{number(1000 * share)} ms"))
    table = Table(
        "A replay sends the requests of very many users at once, so answers wait behind one another. The "
        "service time does not contain this wait: it is the duration divided by the number of decisions.",
        ("What", "Value"),
        tuple((Cell(name), Cell(value)) for name, value in rows),
    )
    return Section("speed", "Speed", (table,))


_KIND = "Privacy statement"
_EXAMPLE = "What that means, by an example"


def statement_page(statement: Statement) -> str:
    """The page; equal statements give equal bytes."""
    warnings = [(f"{_capital(statement.warning)}.", "")] if statement.warning else []
    parts = [(one.title, one.facts) for one in statement.sections]
    return html(
        Page(
            kind=_KIND,
            title=statement.deployment,
            sentence=statement.sentence,
            marks=(*with_meanings(statement.marks), *warnings),
            outcome=(f"{statement.verdict}.",),
            sections=tuple(
                Section(f"part-{place}", title, (*_odds(statement, title), _facts(facts)))
                for place, (title, facts) in enumerate(
                    [*parts, ("Fields of a public registry", tuple(statement.registry.items()))], start=1
                )
            ),
            provenance=(
                ("Computed from", "the deployment's configuration, and entries of its operator"),
                ("Configuration digest", statement.config_digest),
            ),
        )
    )


def is_statement_of(text: str, deployment: str) -> bool:
    """Whether a file's text is a page that `statement_page` made of this deployment."""
    return f"<title>{escape(page_title(deployment, _KIND))}</title>" in text


def _odds(statement: Statement, title: str) -> list[Block]:
    return odds_blocks(statement.odds) if title == _EXAMPLE else []


def _facts(facts: Iterable[tuple[str, str]]) -> Facts:
    return Facts(tuple((_capital(name), text) for name, text in facts))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
