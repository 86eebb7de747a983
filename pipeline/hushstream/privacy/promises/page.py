"""A guarantee as a page of grouped lines, and the same groups as plain values. Each fact appears once.

*Conversion table.* One mechanism's price in every currency: pure epsilon, rho of zCDP, and epsilon at the usual deltas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hushstream.privacy.amounts import (
    DELTA_ONE,
    count_text,
    delta_text,
    delta_units,
    delta_value,
    epsilon_float,
    epsilon_text,
    float_up,
)
from hushstream.privacy.conversions import pure_to_rho_micro, rho_to_epsilon_micro
from hushstream.privacy.promises.promise import Content, Form, Guarantee, amounts, prices_json
from hushstream.privacy.promises.sentence import (
    UNIT,
    Prices,
    Subject,
    bounds,
    even_odds,
    larger,
    percent,
    picture,
    price_text,
    shown,
    strength,
    told,
    weakness,
)

PUBLIC = "public; nothing is guaranteed of it"


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

    @property
    def sentence(self) -> str:
        """The fact with its full stop."""
        return self.text if self.text.endswith(".") else f"{self.text}."

    def __str__(self) -> str:
        """The line by itself, outside its group."""
        return f"{self.name}: {self.sentence}"


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


def groups_of(promise: Guarantee) -> tuple[Group, ...]:
    """The groups of a guarantee: about one person, about its units, and the conditions."""
    lift = promise.lift
    setting = [
        Line("deployment", "Deployment", promise.deployment, promise.deployment),
        Line("strength", "Strength", promise.computational, promise.computational),
    ]
    found = [
        Group("short", "In short", tuple(_short(promise))),
        Group("readers", "Who reads what, and how long it is kept", tuple(_readers(promise.contents))),
        _person(promise),
        Group("unit", "The unit", _unit(promise)),
        *([] if lift is None else [Group("lift", "The lift", (*_unit(lift), *_noise(lift)))]),
        Group("mechanism", "How it is kept", (*_claim(promise), *_noise(promise), *setting)),
        Group("seen", "What is seen by whom", _seen(promise), listed=True),
        _listed("conditions", "It holds only if", "Condition", *(one.conditions for one in promise.each)),
        _listed("not_protected", "Not protected", "Not protected", *(one.not_protected for one in promise.each)),
    ]
    return tuple(group for group in found if group.lines)


FIRST = ("short", "readers")
"""The groups of the first screen."""


def first_screen(promise: Guarantee, beside: Sequence[Group] = ()) -> str:
    """What a reader needs first: the sentence, marks, and the groups `FIRST` and ``beside``."""
    groups = (*(one for one in groups_of(promise) if one.key in FIRST), *beside)
    return _text([promise.sentence(), *promise.marks], groups)


def page_text(promise: Guarantee, beside: Sequence[Group] = (), keys: Collection[str] | None = None) -> str:
    """The page; ``beside`` are groups that others add. With ``keys`` it has only these groups."""
    odds, groups = promise.odds(), (*groups_of(promise), *beside)
    head = [promise.sentence(), *promise.marks, *(picture(odds) if odds else [])]
    return _text(head, [one for one in groups if keys is None or one.key in keys])


def _text(head: Sequence[str], groups: Iterable[Group]) -> str:
    return "\n".join([*head, *(line for group in groups for line in ("", *group.as_text()))]) + "\n"


def page_json(promise: Guarantee) -> dict[str, Any]:
    """The page in plain values: its head, and each group under its key."""
    return {
        "sentence": promise.sentence(),
        "phrase": promise.phrase(),
        "marks": list(promise.marks),
        "private_as_stated": promise.private_as_stated,
        "reproducible": promise.reproducible,
        "tainted": list(promise.tainted),
        "odds": [one._asdict() for one in promise.odds()],
        **{group.key: group.as_json() for group in groups_of(promise)},
    }


def _short(promise: Guarantee) -> Iterable[Line]:
    """Who is protected, at which cost, over what time, by whom, and from what not."""
    life, unit = promise.in_all, promise.unit_prices
    whole = promise.lifetime.counted and (life == unit or weakness(life.zero_out or life.which) is None)
    prices = life if whole else unit
    who = f"{promise.unit}, not all that one person gives, which nobody counts"
    if promise.lifetime.counted:
        who = f"{'' if whole else f'{promise.unit}, not '}one person{'' if whole else f', who pays {bounds(life)}'}"
        who += f": {promise.units_in_life}"
    yield Line("protected", "Protected", who, who)
    yield Line("over", "Over", OVER, OVER)
    text = f"{price_text(prices.which)}: what is protected, against anything else in its place"
    yield Line("replace_one", "Replace-one", text, amounts(prices.which))
    if prices.zero_out is not None:
        text = f"{price_text(prices.zero_out)}: what is protected, against nothing in its place"
        yield Line("zero_out", "Zero-out", text, amounts(prices.zero_out))
    if not promise.unnoised:
        yield Line("belief", "In words", _belief(prices), _belief(prices))
    trusted = list(dict.fromkeys([promise.zone, *(one.zone for one in promise.contents if one.trusted)]))
    noises = list(dict.fromkeys(one.zone for one in promise.each))
    adds = f"the {promise.zone} zone adds the noise{''.join(f' (of the lift, the {zone} zone)' for zone in noises[1:])}"
    said = f"whoever runs the {' or the '.join(trusted)} zone, or holds such a zone's key; {adds}"
    yield Line("trusted", "Trusted", said, trusted)
    facts, conditions = (dict.fromkeys(fact for one in promise.each for fact in getattr(one, name)) for name in _FACTS)
    held = [one for one in promise.contents if one.form is Form.PUBLIC]
    shown_to_all = list(dict.fromkeys(one.what for one in held if one.zone == "published"))
    if shown_to_all:
        yield Line("in_clear", "Published in clear", "; ".join(shown_to_all), shown_to_all)
    others = ", ".join(one.topic for one in held if one.zone != "published")
    taken = f"; {others}: held to be public" if others else ""
    limits = f"what holds for the population ({count_text(len(facts), 'limit')} in all)"
    yield Line("open", "Not protected", f"that somebody took part, how often and when{taken}; {limits}", len(facts))
    if conditions:
        more = f" ({count_text(len(conditions), 'condition')} in all)" * (len(conditions) > 1)
        yield Line("given", "It holds only if", f"{next(iter(conditions))}{more}", len(conditions))


OVER = "all that is ever published, whatever a reader knows besides"
_FACTS = ("not_protected", "conditions")


def _belief(prices: Prices) -> str:
    which, zero = prices.which, prices.zero_out
    sure = f"{percent(even_odds(which))} sure{larger(which)}{strength(which)}"
    text = f"who was 50 % sure of anything in it may become {sure}"
    if zero is None:
        return text
    return f"{text}; 50 % sure it is not empty, {percent(even_odds(zero))}{larger(zero)}{strength(zero)}"


def _readers(contents: Sequence[Content]) -> Iterable[Line]:
    """For each kind of reader and form, the topics by the time for which they are kept."""
    for zone, form in dict.fromkeys((one.zone, one.form) for one in contents):
        kept: dict[str, dict[str, str]] = {}
        for one in contents:
            if (one.zone, one.form) == (zone, form):
                parts = len({other.form for other in contents if other.topic == one.topic})
                part = one.topic if parts == 1 else f"in {one.topic} {one.what}"
                kept.setdefault(_kept(one.kept_days), {})[part] = one.topic
        text = "; ".join(f"{', '.join(parts)} ({days})" for days, parts in kept.items())
        who = "Everybody" if zone == "published" else f"Operators of the {zone} zone"
        topics = {days: list(dict.fromkeys(parts.values())) for days, parts in kept.items()}
        yield Line(f"{zone}: {form}", who, f"{form}: {text}", topics)


def _kept(days: int | None) -> str:
    return "while the deployment lasts" if days is None else count_text(days, "day")


def _person(promise: Guarantee) -> Group:
    lift, lifetime = promise.lift, promise.lifetime
    counted = promise.units_in_life if lift is None else f"{promise.units_in_life}: {lift.unit}"
    lines = [
        *_prices(promise.in_all, promise.person, promise.unnoised),
        Line(
            "counted",
            "Counted of one person" if lifetime.counted else "Assumed of one person",
            counted,
            {name: getattr(lifetime, name) for name in ("units", "devices", "counted")}
            | {"cap": lifetime.cap and lifetime.cap._asdict()},
        ),
    ]
    if lift is not None:
        life = promise.life_prices
        lines.append(Line("releases", "Of that, without the lift", told(life, promise.person), prices_json(life)))
    if promise.warning is not None:
        lines.append(Line("warning", "Warning", promise.warning, promise.warning))
    title = "One person, in a whole life" if lifetime.counted else "One person, if they give no more than assumed"
    return Group("person", title, tuple(lines))


def _unit(promise: Guarantee) -> tuple[Line, ...]:
    lines = [
        Line("unit", "Unit", promise.unit, promise.unit),
        *_prices(promise.unit_prices, UNIT, promise.unnoised),
    ]
    if promise.redraws is not None:
        most, price = promise.redraws.most, promise.redraws.price
        text = f"{shown(price)}; the figures above are for all {most} that there may be"
        lines.append(Line("one_epoch", "One epoch of noise", text, {"most": most, **amounts(price)}))
    return (*lines, Line("relation", "Relation", promise.relation, promise.relation))


def _prices(prices: Prices, subject: Subject, unnoised: tuple[str, ...]) -> list[Line]:
    """The costs, the larger one first; they do not cover content that is disclosed without noise."""
    beside = f"; not of what leaves un-noised on {', '.join(unnoised)}" if unnoised else ""
    name = f"{subject.which[:1].upper()}{subject.which[1:]}"
    lines = [Line("which", name, f"{price_text(prices.which)}{beside}", amounts(prices.which))]
    if prices.zero_out is None:
        return [*lines, Line("zero_out", "Participation", PUBLIC, "public")]
    name = f"{subject.zero_out[:1].upper()}{subject.zero_out[1:]}"
    return [*lines, Line("zero_out", name, f"{price_text(prices.zero_out)}{beside}", amounts(prices.zero_out))]


def _claim(promise: Guarantee) -> list[Line]:
    if promise.claimed is None:
        return []
    claim = promise.claimed
    claimed = f"epsilon {epsilon_text(claim.epsilon_micro)}, delta {claim.delta} ({claim.source})"
    at_that = promise.epsilon_micro == claim.epsilon_micro
    true = f"at that epsilon, delta {delta_text(promise.delta_units)}" if at_that else shown(promise.cost)
    return [
        Line("claimed", "Claimed", claimed, {**asdict(claim), "epsilon": epsilon_float(claim.epsilon_micro)}),
        Line("true", "True", true, amounts(promise.cost)),
    ]


def _noise(promise: Guarantee) -> list[Line]:
    truncation, included = float_up(delta_value(promise.truncation_units)), delta_text(promise.truncation_units)
    part = "all" if promise.truncation_units == promise.delta_units > 0 else "part"
    moved = f"{promise.sensitivity}, {promise.norm}"
    zone = f"the {promise.zone} zone, trusted with the content before the noise"
    return [
        Line("mechanism", "Mechanism", promise.mechanism, promise.mechanism),
        Line("sensitivity", "Sensitivity", moved, {"most": promise.sensitivity, "norm": promise.norm}),
        Line("truncation", f"Truncation error of the sampler, {part} of delta", included, truncation),
        Line("zone", "Adds the noise", zone, promise.zone),
    ]


def _seen(promise: Guarantee) -> tuple[Line, ...]:
    fields = ("topic", "what", "form", "zone", "leaves_unnoised")
    return tuple(
        Line(one.topic, "Content of persons", str(one), {name: getattr(one, name) for name in fields})
        for one in promise.contents
    )


def _listed(key: str, title: str, name: str, releases: Iterable[str], lift: Iterable[str] = ()) -> Group:
    found = dict.fromkeys(releases)
    found |= dict.fromkeys(f"of the lift: {fact}" for fact in lift if fact not in found)
    return Group(key, title, tuple(Line(key, name, fact, fact) for fact in found), listed=True)


DELTAS = ("1e-5", "1e-6", "1e-7", "1e-8", "1e-9")


@dataclass(frozen=True, slots=True)
class ConversionRow:
    """A price, converted. All amounts are rounded up; the truncation error of the noise's tables comes on top of each
    delta.

    Attributes:
        covers: what it is the price of.
        pure_micro: pure epsilon in millionths; None where there is none.
        rho_micro: zCDP in millionths.
        at_micro: epsilon in millionths at each of `DELTAS`.
    """

    covers: str
    pure_micro: int | None
    rho_micro: int
    at_micro: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "covers": self.covers,
            "pure_epsilon": None if self.pure_micro is None else epsilon_float(self.pure_micro),
            "rho": epsilon_float(self.rho_micro),
            "epsilon_at_delta": {
                delta: epsilon_float(micro) for delta, micro in zip(DELTAS, self.at_micro, strict=True)
            },
        }


def conversion_rows(promise: Guarantee) -> tuple[ConversionRow, ...]:
    """The price of one unit, and of all units of one user, over all redraws of the noise.

    Empty for a mechanism that is priced by (epsilon, delta) alone: no rho follows from one. A life whose delta is 1 has
    no row: the truncation error that comes on top of each delta is 1 there, so no epsilon of it is a bound.

    Guarantee:
        n units of one person move the sums n times as far: n epsilon, n^2 rho (group privacy; for Gaussian noise see
        `hushstream.counting.counter`). Redraws are independent draws over the same units: rhos add. Epsilon at a
        delta is the least of the pure one and of what rho gives.
    """
    pure = promise.rho_micro is None and promise.delta_units == promise.truncation_units and promise.claimed is None
    if promise.rho_micro is None and not pure:
        return ()
    times = 1 if promise.redraws is None else promise.redraws.most
    units = promise.lifetime.units * promise.lifetime.devices
    found = [_row(promise, times, 1, promise.unit)]
    if units > 1 and promise.lifetime.cost.delta_units < DELTA_ONE:
        found.append(_row(promise, times, units, f"all {units} of one user"))
    return tuple(found)


def conversion_lines(promise: Guarantee, rows: Sequence[ConversionRow]) -> list[str]:
    """The rows as lines of a table, below a line that names their relation; one line if there are no rows."""
    if not rows:
        return ["None: this mechanism is accounted for by epsilon and delta together."]
    # A pure epsilon that no delta lowers is given once.
    count = 0 if all(set(row.at_micro) == {row.pure_micro} for row in rows) else len(DELTAS)
    lines = [["covers", "pure epsilon", "rho", *(f"epsilon at {delta}" for delta in DELTAS[:count])]]
    for row in rows:
        pure = "-" if row.pure_micro is None else epsilon_text(row.pure_micro)
        lines.append([row.covers, pure, epsilon_text(row.rho_micro), *map(epsilon_text, row.at_micro[:count])])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    query = "Replace-one"
    if not promise.any_content:
        query = "Zero-out; replace-one costs twice the pure epsilon, at most four times the rho"
    text = [f"{query}. The sampler's truncation error comes on top of each delta.", *table]
    if promise.lifetime.cost.delta_units >= DELTA_ONE:
        text.append(f"{promise.units_in_life} together pay a delta of 1: nothing is guaranteed, under any definition.")
    return text


def _row(promise: Guarantee, times: int, units: int, covers: str) -> ConversionRow:
    if promise.rho_micro is not None:
        rho, pure = times * units**2 * promise.rho_micro, None
    else:
        one = units * promise.price.epsilon_micro
        rho, pure = times * pure_to_rho_micro(one), times * one
    found = tuple(rho_to_epsilon_micro(rho, delta_units(delta)) for delta in DELTAS)
    return ConversionRow(covers, pure, rho, found if pure is None else tuple(min(pure, micro) for micro in found))
