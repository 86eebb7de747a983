"""A guarantee as a page of grouped lines, and the same groups as plain values. Each fact appears once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hushstream.privacy.amounts import delta_text, delta_value, epsilon_text, float_up
from hushstream.privacy.promises.promise import Guarantee, Promises, amounts
from hushstream.privacy.promises.sentence import Prices, Subject, picture, price_text

PUBLIC = "public; nothing is promised of it"


@dataclass(frozen=True, slots=True)
class Line:
    """One fact.

    Attributes:
        key: stable, for scripts.
        name: what it is about, for people; all lines of a list have the same name.
        text: the fact.
        value: for scripts.
    """

    key: str
    name: str
    text: str
    value: Any

    def __str__(self) -> str:
        """The line by itself, outside its group."""
        return f"{self.name}: {self.text}" if self.text.endswith(".") else f"{self.name}: {self.text}."


@dataclass(frozen=True, slots=True)
class Group:
    """Facts under one short heading.

    Attributes:
        key: stable, for scripts.
        title: the heading.
        lines: the facts.
        listed: whether the lines are a list without names.
        plain: whether they are whole sentences or rows, which need no names.
    """

    key: str
    title: str
    lines: tuple[Line, ...]
    listed: bool = False
    plain: bool = False

    def as_json(self) -> Any:
        """The values by key, or in their order."""
        if self.listed:
            return [line.value for line in self.lines]
        return {line.key: line.value for line in self.lines}

    def as_text(self) -> list[str]:
        """The heading, and one line for each fact."""
        if self.listed:
            return [self.title, *(f"  - {line.text}" for line in self.lines)]
        return [self.title, *(f"  {line.text if self.plain else line}" for line in self.lines)]


def groups_of(promises: Promises) -> tuple[Group, ...]:
    """The groups of a deployment's promises: about one person, about its units, and the conditions."""
    releases, lift = promises.releases, promises.lift
    found = [
        _person(promises),
        Group("unit", "The unit", _unit(releases)),
        *([] if lift is None else [Group("lift", "The lift", (*_unit(lift), *_noise(lift)))]),
        Group("mechanism", "How it is kept", (*_claim(releases), *_noise(releases), *_setting(releases))),
        Group("seen", "What is seen by whom", _seen(releases), listed=True),
        _listed("conditions", "It holds only if", "Condition", *(one.conditions for one in promises.each)),
        _listed("not_protected", "Not protected", "Not protected", *(one.not_protected for one in promises.each)),
    ]
    return tuple(group for group in found if group.lines)


def page_head(promises: Promises) -> list[str]:
    """The head of the page: the sentence, marks and the picture."""
    odds = promises.odds()
    return [promises.sentence(), *promises.releases.marks, *(picture(odds) if odds else [])]


def page_text(promises: Promises, beside: Sequence[Group] = (), keys: Collection[str] | None = None) -> str:
    """The page; ``beside`` are groups that others add. With ``keys`` it has only these groups."""
    lines = page_head(promises)
    for group in (*groups_of(promises), *beside):
        if keys is None or group.key in keys:
            lines += ["", *group.as_text()]
    return "\n".join(lines) + "\n"


def page_json(promises: Promises) -> dict[str, Any]:
    """The page in plain values: its head, and each group under its key."""
    return {
        "sentence": promises.sentence(),
        "phrase": promises.phrase(),
        "marks": list(promises.releases.marks),
        "odds": [one._asdict() for one in promises.odds()],
        **{group.key: group.as_json() for group in groups_of(promises)},
    }


def fact_lines(promises: Promises) -> tuple[str, ...]:
    """The facts of all groups, one for each line, without headings, for reports that sort them."""
    return tuple(str(line) for group in groups_of(promises) for line in group.lines)


def _person(promises: Promises) -> Group:
    releases, lift = promises.releases, promises.lift
    counted = releases.units_in_life if lift is None else f"{releases.units_in_life}; and the lift: {lift.unit}"
    lifetime = releases.lifetime
    lines = [
        *_prices(promises.together, releases.person, releases.unnoised),
        Line(
            "counted",
            "Counted of one person",
            counted,
            {
                "units": lifetime.units,
                "devices": lifetime.devices,
                "cap": None if lifetime.cap is None else lifetime.cap._asdict(),
                "counted": lifetime.counted,
            },
        ),
    ]
    if promises.warning is not None:
        lines.append(Line("warning", "Warning", promises.warning, promises.warning))
    return Group("person", "One person, in a whole life", tuple(lines))


def _unit(promise: Guarantee) -> tuple[Line, ...]:
    subject = Subject("which of two it was", "whether it was there at all", "")
    lines = [
        Line("unit", "Unit", promise.unit, promise.unit),
        *_prices(promise.unit_prices, subject, promise.unnoised),
    ]
    if promise.redraws is not None:
        most, price = promise.redraws.most, promise.redraws.price
        text = f"{price}; the figures above are for all {most} that there may be"
        lines.append(Line("one_epoch", "One epoch of noise", text, promise.redraws.as_json()))
    return (*lines, Line("relation", "Relation", promise.relation, promise.relation))


def _prices(prices: Prices, subject: Subject, unnoised: tuple[str, ...]) -> list[Line]:
    """The prices, the larger one first; they do not cover content that is disclosed without noise."""
    beside = f"; not of what leaves un-noised on {', '.join(unnoised)}" if unnoised else ""
    name = f"{subject.which[:1].upper()}{subject.which[1:]}"
    lines = [Line("which", name, f"{price_text(prices.which)}{beside}", amounts(prices.which))]
    if prices.took_part is None:
        return [*lines, Line("took_part", "That there was any", PUBLIC, "public")]
    name = f"{subject.took_part[:1].upper()}{subject.took_part[1:]}"
    return [*lines, Line("took_part", name, f"{price_text(prices.took_part)}{beside}", amounts(prices.took_part))]


def _claim(promise: Guarantee) -> list[Line]:
    if promise.claimed is None:
        return []
    claim = promise.claimed
    claimed = f"epsilon {epsilon_text(claim.epsilon_micro)}, delta {claim.delta} ({claim.source})"
    at_that = promise.epsilon_micro == claim.epsilon_micro
    true = f"at that epsilon, delta {delta_text(promise.delta_units)}" if at_that else str(promise.cost)
    return [
        Line("claimed", "Claimed", claimed, claim.as_json()),
        Line("true", "True", true, amounts(promise.cost)),
    ]


def _noise(promise: Guarantee) -> list[Line]:
    residue, included = float_up(delta_value(promise.residue_units)), delta_text(promise.residue_units)
    moved = f"{promise.sensitivity}, {promise.norm}"
    zone = f"the {promise.zone} zone, which sees what it protects: it is trusted"
    return [
        Line("mechanism", "Mechanism", promise.mechanism, promise.mechanism),
        Line("sensitivity", "Sensitivity", moved, {"most": promise.sensitivity, "norm": promise.norm}),
        Line("residue", "Residue of the noise tables, counted in delta", included, residue),
        Line("zone", "Adds the noise", zone, promise.zone),
    ]


def _setting(promise: Guarantee) -> list[Line]:
    return [
        Line("deployment", "Deployment", promise.deployment, promise.deployment),
        Line("strength", "Strength", promise.computational, promise.computational),
    ]


def _seen(promise: Guarantee) -> tuple[Line, ...]:
    return tuple(
        Line(content.topic, "Content of persons", str(content), content.as_json()) for content in promise.contents
    )


def _listed(key: str, title: str, name: str, releases: Iterable[str], lift: Iterable[str] = ()) -> Group:
    found = dict.fromkeys(releases)
    found |= dict.fromkeys(f"of the lift: {fact}" for fact in lift if fact not in found)
    return Group(key, title, tuple(Line(key, name, fact, fact) for fact in found), listed=True)
