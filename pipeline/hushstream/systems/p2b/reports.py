"""The report on a released model: which items it prefers in which cells, and how sure it is.

It is made from the models topic and the configuration alone: for each item and each cell (a value of a declared
feature) the reward that the model expects, and its standard deviation. The reward is m_a0 + m_aj, the item's own reward
plus the cell's effect, which are independent, and linear around the mean rate, as learners use them. The probability
that an item is the best of a cell compares it with the second best, both taken as normal and independent.

The share of the noise in the variance of an average effect follows from public numbers: the number of released windows
(one for each version), the slots behind the model, and the configuration.

*Measurement.* The report on what a deployment's model brings, from the published lift topic alone.

*Of groups* it compares the reward rates of users who begin with the shared private model with those of users who are
shown the application's own choice, and with those of users who learn by themselves alone (`lift_of`).

*Of answers*, in the shadow, it says what the answers would earn, compared with what the application showed. For each
item a, of N decisions in all: W_a decisions answered a, in G_a of these the application showed a, too, and r_a is the
rate of reward there. Assume that among visits with the answer a, the application's choice does not depend on what these
visits would have rewarded. Then the answers earn sum W_a / N r_a: a self-normalised estimate (SNIPS) whose propensities
are the rates of agreement, by item. An item that was answered and hardly ever shown may earn anything from 0 to 1, and
the interval is wider by that.

*Export.* Exports a released model as a file, to decide with it elsewhere or to start another deployment from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import Catalogue
from hushstream.engine.declare.declaration import EVERYBODY, Compared, Ended
from hushstream.engine.learner.model_parts import CONTENT
from hushstream.engine.records import MODEL_PARTS, PART
from hushstream.engine.release_parts import PartSets
from hushstream.engine.state.packed import KnownIds
from hushstream.engine.values import require
from hushstream.features.kinds import (
    Boolean,
    Category,
    Cross,
    DayOfWeek,
    Embedding,
    Entries,
    Feature,
    Histogram,
    Number,
    Tags,
)
from hushstream.features.schema import FeatureSchema
from hushstream.privacy.amounts import (
    count_text,
    delta_from_bytes,
    delta_text,
    delta_value,
    epsilon_float,
    epsilon_text,
    float_up,
)
from hushstream.privacy.promises.promise import prices_json
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import MeasurementConfig, P2BConfig
from hushstream.systems.p2b.deployment import PRIVATE, FeaturesForm, P2BSystem, decode_model
from hushstream.systems.p2b.edge.policies import COLD, SharedPolicy
from hushstream.systems.p2b.forecast import Sample, noise_of_cells
from hushstream.systems.p2b.guarantee import noise_variance
from hushstream.systems.p2b.lift import (
    NORMAL_95,
    SHOWN,
    AnswersLift,
    Group,
    Lift,
    answers_of,
    controls_of,
    lift_of,
    required_lift,
)
from hushstream.systems.p2b.models import ExportedModel, Golden
from hushstream.systems.p2b.server.estimate import WarmStart, cold_start, rate_of, started
from hushstream.systems.p2b.slots import FeatureLayout, cell_names
from hushstream.systems.p2b.succession import FOLLOWS, NOTHING, STARTED_FROM, Predecessor
from hushstream.systems.p2b.topics import EDGE_ZONE

_GROUPS_BASIS = (
    "Counted are decisions of users who began when there was a model, whose wait for a reward is over{named}; of each "
    "user the first {most}. Each 95 % interval holds by itself, however alike the decisions of one user are, "
    "and at one look: who looks ten times finds 0 excluded at least once in 19 % of cases without any difference."
)
"""Repeated looks: Armitage, McPherson, Rowe, "Repeated significance tests on accumulating data" (JRSS A 1969)."""
_ANSWERS_BASIS = (
    "Counted are users who began when there was a model. Assumed is that, among visits with the same answer, the "
    "choice did not depend on what they would have rewarded: one that suits each visit makes the answers look better "
    "than they are. The 95 % hold however alike the decisions of one user are."
)


@dataclass(frozen=True, slots=True)
class LiftReport:
    """What the model brings, and the releases that it was computed from.

    Attributes:
        settings: of the measurement.
        found: the figures, of groups or of answers.
        releases: number of releases of all counters together.
        epsilon_micro: the most epsilon that one user has spent on it.
        delta_units: the most delta that one user has spent on it.
        private_as_stated: False if a release was made under a seeded key.
        harms: what the guardrail counts, in harm instead of rewards; None where it counts nothing.
    """

    settings: MeasurementConfig
    found: Lift | AnswersLift
    releases: int
    epsilon_micro: int
    delta_units: int
    private_as_stated: bool
    harms: Lift | None = None

    @property
    def exit_code(self) -> int:
        """0 if every comparison that is measured has a result; of answers, if its interval excludes 0. Otherwise 1."""
        if isinstance(self.found, AnswersLift):
            return 0 if self.found.certain else 1
        return 0 if all(self.found.over(control) is not None for control in controls_of(self.settings)) else 1

    def comparisons(self) -> Sequence[Compared]:
        """See `MeasurementReport.comparisons`."""
        found = self.found
        if isinstance(found, AnswersLift):
            more = found.decisions_more
            needed = None if more is None else found.decisions + more
            return [Compared("what was shown", found.lift, found.interval, found.decisions, needed)]
        controls = controls_of(self.settings)
        told = [_compared(found, control) for control in controls]
        if self.harms is not None:
            harm = self.settings.guardrail or ""
            told += [_compared(self.harms, control)._replace(harm=harm) for control in controls]
        return told

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; null if too little was counted."""
        found, paid = self.found, {"epsilon_micro": self.epsilon_micro, "delta_units": str(self.delta_units)}
        rest = {"of": self.settings.of, "releases": self.releases, **paid, "private_as_stated": self.private_as_stated}
        if isinstance(found, AnswersLift):
            return {**asdict(found), "certain": found.certain, "decisions_more": found.decisions_more, **rest}
        controls, harms = controls_of(self.settings), self.harms
        guardrail = {"harm": self.settings.guardrail, **({} if harms is None else _groups_json(harms, controls))}
        return {**_groups_json(found, controls), "guardrail": None if harms is None else guardrail, **rest}

    def as_text(self) -> str:
        """The figures, one a line."""
        lines = [] if self.private_as_stated else ["REPRODUCIBLE, NOT PRIVATE"]
        if isinstance(self.found, AnswersLift):
            lines += [*_answers_lines(self.found), _ANSWERS_BASIS]
        else:
            named = ", and whose request named a baseline" if self.settings.baseline else ""
            controls = controls_of(self.settings)
            lines += _groups_lines(self.found, controls)
            if self.harms is not None:
                lines.append(f"The guardrail, {self.settings.guardrail}: harm instead of reward, so less is better.")
                lines += _groups_lines(self.harms, controls)
            lines.append(_GROUPS_BASIS.format(named=named, most=self.settings.decisions_per_user))
        price = f"epsilon {epsilon_text(self.epsilon_micro)}, delta {delta_text(self.delta_units)}"
        lines.append(f"From {count_text(self.releases, 'release')}; together they cost one user {price}.")
        return "\n".join(lines) + "\n"


def _compared(found: Lift, control: Group) -> Compared:
    over, counted = found.over(control), found.counted[Group.MODEL] + found.counted[control]
    if over is None:
        return Compared(SHOWN[control], None, None, counted, counted + found.more(Group.MODEL) + found.more(control))
    interval = (over.difference - over.ci95, over.difference + over.ci95)
    needed = None if over.decisions_more is None else counted + over.decisions_more
    return Compared(SHOWN[control], over.difference, interval, counted, needed)


def _groups_json(found: Lift, controls: Sequence[Group]) -> dict[str, Any]:
    return {
        "groups": {group.label: {"shown": SHOWN[group], **found.plain(group)} for group in (Group.MODEL, *controls)},
        "shared_private_model_over": {
            one.label: asdict(over) if (over := found.over(one)) else None for one in controls
        },
    }


def _groups_lines(found: Lift, controls: Sequence[Group]) -> Iterator[str]:
    for group in (Group.MODEL, *controls):
        one, name = found.rates[group], SHOWN[group].capitalize()
        about = f"about {count_text(max(0, round(found.counted[group])), 'decision', ',')} counted"
        if one is None:
            yield (
                f"{name}: {about} (the noise is within {found.noise:,.0f}), {math.ceil(found.needed):,} needed to tell "
                f"a rate from the noise, so {found.more(group):,} more."
            )
        elif not 0 <= one.rate <= 1:
            ends = f"{one.rate - one.ci95:.4f} to {one.rate + one.ci95:.4f}, 95 % CI"
            yield f"{name}: not known yet ({ends}; the noise makes it no rate from 0 to 1); {about}."
        else:
            yield f"{name}: {one.rate:.4f} a decision ({_within(one.ci95, one.noise95)}); {about}."
    for group in controls:
        over = found.over(group)
        if over is not None:
            within, more = _within(over.ci95, over.noise95), _how_many_more(over.decisions_more)
            yield f"The shared private model over {SHOWN[group]}: {over.difference:+.4f} a decision ({within}). {more}"


def _within(ci95: float, noise95: float) -> str:
    return f"+-{ci95:.4f} (95 % CI); the privacy noise alone gives +-{noise95:.4f}"


def _how_many_more(more: int | None) -> str:
    if more is None:
        return "There is no difference at all: no number of decisions would show one."
    if not more:
        return "The interval excludes 0: that is enough."
    return f"About {count_text(more, 'decision', ',')} more until the interval excludes 0, if the difference stays."


def _answers_lines(found: AnswersLift) -> Iterator[str]:
    yield (
        f"About {max(0.0, found.decisions):.0f} decisions in the shadow; in {max(0.0, found.agreed):.0f} the "
        f"application showed what was answered."
    )
    if found.lift is None or found.interval is None or found.noise95 is None:
        yield "Too little was shown to distinguish the lift from the noise: continue."
        return
    low, high = found.interval
    yield f"What was shown earned {found.earned:.4f} a decision."
    within = f"95 % CI {low:+.4f} to {high:+.4f}; the privacy noise alone gives +-{found.noise95:.4f}"
    yield f"The answers over what was shown (SNIPS): {found.lift:+.4f} a decision, {within}."
    yield from _verdict(found)


def _verdict(found: AnswersLift) -> Iterable[str]:
    if found.unseen >= 0.005:
        yield (
            f"{100 * found.unseen:.0f} % of the answers are items that were hardly ever shown to those who were "
            f"answered them: what these would earn is unknown, and the interval covers every possibility."
        )
    if found.certain:
        more = found.lift is not None and found.lift > 0
        yield f"If the assumption below holds, the answers would bring {'more' if more else 'less'} than what is shown."
    elif found.decisions_more is None:
        yield "More decisions alone would not show a lift: let some visits see other items than you show now."
    else:
        yield f"About {found.decisions_more} decisions more until the interval excludes 0, if the lift stays."


def read_lift(values: Iterable[bytes], system: P2BSystem) -> LiftReport:
    """What the model of a deployment brings.

    Args:
        values: the bytes of the records on the lift's topic.
        system: the deployment.

    Raises:
        HushstreamError: nothing was released yet, or groups are measured where everybody is shown the same.
    """
    settings = required_lift(system.config).settings
    if settings.of == "groups" and system.config.mode == "shadow":
        raise HushstreamError(
            "lift: expected a live deployment where groups are measured, got mode: shadow, where every group is shown "
            "the application's own choice; set measurement: {of: answers} for a new deployment in the shadow"
        )
    newest: dict[bytes, Mapping[str, Any]] = {}
    for _, fields in codec.readable(values, frozenset({"Lift"})):
        held = newest.get(fields["counter"])
        if fields["config_digest"] == system.digest and (held is None or fields["leaf"] > held["leaf"]):
            newest[fields["counter"]] = fields
    if not newest:
        window = system.config.feedback.attribution_window_seconds
        raise HushstreamError(
            f"lift: expected at least one release, got none: a decision counts once its wait for a reward is over "
            f"({window:g} s), and releases are {settings.every_seconds:g} s apart, so the first comes within some "
            f"{window + settings.every_seconds:g} s of the first decision, as soon as others come after it"
        )
    found = newest.values()
    counts = [(np.frombuffer(f["sums"], "<i8"), f["variance"], f["levels"]) for f in found]
    harms = [(np.frombuffer(f["guardrail"], "<i8"), f["guardrail_variance"], f["levels"]) for f in found]
    make = lift_of if settings.of == "groups" else answers_of
    return LiftReport(
        settings,
        make(counts, settings.decisions_per_user),
        sum(fields["leaf"] for fields in found),
        max(fields["epsilon_micro"] for fields in found),
        max(delta_from_bytes(fields["delta_units"]) for fields in found),
        all(fields["private_as_stated"] for fields in found),
        None if settings.guardrail is None else lift_of(harms, settings.decisions_per_user),
    )


Float64 = NDArray[np.float64]

_MOST_SHOWN = 5
_COMPARED = 2
_MOST_APART = 1.0
"""The largest deviation of items that the priors of effects allow (`server.estimate`), in log-odds."""

_HIDDEN = 3.0
"""A number of slots within so many deviations of its noise may be noise alone."""
_LINE = "private"


class ShownItem(NamedTuple):
    """An item as it is shown to people.

    Attributes:
        item: its id.
        called: its title and its id, or "item 3".
        title: its title; empty if it has none.
        retired: whether it is retired, as far as the catalogue was read.
    """

    item: str
    called: str
    title: str = ""
    retired: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        named = {"title": self.title, "retired": self.retired}
        return {"item": self.item, **{name: value for name, value in named.items() if value}}


class MeanReward(NamedTuple):
    """How well the mean reward of all items is known.

    Attributes:
        low, high: ends of its 95 % interval.
        apart: the least deviation of an item's log-odds from it, as sampling and noise leave it; `_MOST_APART` at most.
            Items that noise hides are estimated to be alike, which does not show that they are.
    """

    low: float
    high: float
    apart: float


@dataclass(frozen=True, slots=True, eq=False)
class ModelTable:
    """One version of a model as a table.

    Attributes:
        version: number of the version.
        observations: the number of slots behind it, from its record.
        items: the K items that its rows stood for.
        cells: names of the C cells.
        own, own_deviations: (K,) an item's expected reward over all cells, and its standard deviation.
        effects, deviations: (K, C) the effect that a cell adds to it, and its standard deviation.
        noise: share of the noise in the variance of an average effect, by block.
        private_as_stated: False if a release was made under a seeded key.
        mean: how well the mean reward of all items is known; None: each item's deviation has all there is.
    """

    version: int
    observations: float
    items: tuple[ShownItem, ...]
    cells: tuple[str, ...]
    own: Float64
    own_deviations: Float64
    effects: Float64
    deviations: Float64
    noise: Mapping[str, float]
    private_as_stated: bool
    mean: MeanReward | None = None

    def interval(self, row: int) -> tuple[float, float]:
        """The 95 % interval of an item's expected reward over all cells.

        An item's deviation is on log-odds, times the slope at the noised mean. It is taken with the largest slope
        within the interval of the mean: a mean that noise brought near 0 has nearly none.
        """
        own, half = float(self.own[row]), NORMAL_95 * float(self.own_deviations[row])
        if self.mean is None:
            return own - half, own + half
        low, high, apart = self.mean
        mean = min(max(float(self.own.mean()), low, 1e-6), high)
        steepest = _slope(min(max(0.5, low), high))
        half = max(half * max(1.0, steepest / _slope(mean)), NORMAL_95 * steepest * apart)
        return max(0.0, own - math.hypot(half, mean - low)), min(1.0, own + math.hypot(half, high - mean))

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "version": self.version,
            "observations": self.observations,
            "private_as_stated": self.private_as_stated,
            "noise_share": dict(self.noise),
            "items": [
                {
                    **item.as_json(),
                    "reward": float(self.own[row]),
                    "deviation": float(self.own_deviations[row]),
                    "interval": list(self.interval(row)),
                    "effects": [
                        {"cell": name, "effect": float(self.effects[row, place]), "deviation": float(deviation)}
                        for place, (name, deviation) in enumerate(zip(self.cells, self.deviations[row], strict=True))
                    ],
                }
                for row, item in enumerate(self.items)
            ],
            "segments": [one.as_json() for one in self.segments()],
        }

    def as_text(self) -> str:
        """The items in the order of their rewards, then the best item of each cell, then the noise."""
        lines = [] if self.private_as_stated else ["REPRODUCIBLE, NOT PRIVATE"]
        lines.append(f"Version {self.version}, of about {count_text(self.observations, 'report', ',.0f')}.")
        lines += ["", "Items, by expected reward (95 % interval)"]
        for row in np.argsort(-self.own, kind="stable").tolist():
            low, high = self.interval(row)
            known = (
                f"{self.own[row]:.4f} ({low:.4f} to {high:.4f})" if (low, high) != (0.0, 1.0) else "nothing learned yet"
            )
            lines.append(f"  {self.items[row].called}: {known}{self._surest_effects(row)}")
        lines += ["", "Best item by cell"]
        lines += [f"  {one.as_text()}" for one in self.segments()]
        lines += ["", "Share of the noise in the variance of an average effect"]
        lines += [f"  {name}: {share:.0%}" for name, share in self.noise.items()]
        return "\n".join(lines) + "\n"

    def _surest_effects(self, row: int) -> str:
        """The surest effects of an item that exceed two standard deviations, as text."""
        sure = np.abs(self.effects[row]) / np.maximum(self.deviations[row], 1e-300)
        places = [place for place in np.argsort(-sure, kind="stable")[:_MOST_SHOWN].tolist() if sure[place] > 2]
        text = ", ".join(f"{self.cells[place]} {self.effects[row, place]:+.4f}" for place in places)
        return f"; {text}" if text else ""

    def segments(self) -> list[Segment]:
        """The best item on offer in each cell; empty if only one item is on offer."""
        if sum(not one.retired for one in self.items) < _COMPARED:
            return []
        found = []
        for place, name in enumerate(self.cells):
            rewards = self.own + self.effects[:, place]
            order = np.argsort(-rewards, kind="stable").tolist()
            first, second = [row for row in order if not self.items[row].retired][:_COMPARED]
            spread = math.hypot(
                *(math.hypot(self.own_deviations[one], self.deviations[one, place]) for one in (first, second))
            )
            margin = float(rewards[first] - rewards[second])
            sure = NormalDist().cdf(margin / spread) if spread > 0 else 1.0
            best, next_best = self.items[first], self.items[second]
            found.append(Segment(name, best, float(rewards[first]), next_best, margin, sure))
        return found


@dataclass(frozen=True, slots=True)
class Segment:
    """The item that a model prefers in one cell.

    Attributes:
        cell: name of the cell.
        item: the best item.
        reward: its expected reward.
        second: the second best item.
        margin: the difference of their expected rewards.
        sure: probability that the first one is better.
    """

    cell: str
    item: ShownItem
    reward: float
    second: ShownItem
    margin: float
    sure: float

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "cell": self.cell,
            "item": self.item.item,
            "reward": self.reward,
            "second": self.second.item,
            "margin": self.margin,
            "sure": self.sure,
        }

    def as_text(self) -> str:
        """One line of text."""
        return (
            f"{self.cell}: {self.item.called} ({self.reward:.4f}), by {self.margin:.4f} before {self.second.called}, "
            f"{self.sure:.0%} sure"
        )


@dataclass(frozen=True, slots=True)
class ModelChange:
    """The differences between two versions of a model.

    Attributes:
        older, newer: numbers of the versions.
        changed: the cells whose best item changed: (older, newer).
        moved: items that both versions have, with the change of their own reward, the largest first.
        entered, left: items that only the newer version has, and items that only the older one has.
    """

    older: int
    newer: int
    changed: tuple[tuple[Segment, Segment], ...]
    moved: tuple[tuple[ShownItem, float], ...]
    entered: tuple[ShownItem, ...] = ()
    left: tuple[ShownItem, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "older": self.older,
            "newer": self.newer,
            "changed": [{"older": old.as_json(), "newer": new.as_json()} for old, new in self.changed],
            "moved": [{"item": item.item, "by": by} for item, by in self.moved],
            "entered": [item.item for item in self.entered],
            "left": [item.item for item in self.left],
        }

    def as_text(self) -> str:
        """Lines of text."""
        lines = [
            f"From version {self.older} to {self.newer}: another item is preferred in "
            f"{count_text(len(self.changed), 'cell')}."
        ]
        lines += [f"  {new.as_text()}; before, {old.item.called}" for old, new in self.changed]
        lines += [f"  {item.called}: {by:+.4f}" for item, by in self.moved[:_MOST_SHOWN]]
        lines += [f"  {item.called}: new" for item in self.entered]
        lines += [f"  {item.called}: gone" for item in self.left]
        return "\n".join(lines) + "\n"


def change_of(older: ModelTable, newer: ModelTable) -> ModelChange:
    """Compare two versions of one deployment; items are matched by their ids."""
    before, after = ({one.item: row for row, one in enumerate(table.items)} for table in (older, newer))
    both = [(newer.items[row], before[item], row) for item, row in after.items() if item in before]
    moved = [(item, float(newer.own[new] - older.own[old])) for item, old, new in both]
    pairs = zip(older.segments(), newer.segments(), strict=False)
    return ModelChange(
        older.version,
        newer.version,
        tuple((old, new) for old, new in pairs if old.item.item != new.item.item),
        tuple(sorted(moved, key=lambda one: -abs(one[1]))),
        tuple(newer.items[row] for item, row in after.items() if item not in before),
        tuple(older.items[row] for item, row in before.items() if item not in after),
    )


class SimilarItem(NamedTuple):
    """An item beside another one.

    Attributes:
        item: of the two the one that is compared.
        distance: root mean square of the differences of their effects over all cells, in rewards a decision.
        noise: the distance that two items with equal effects have by the uncertainty of both, in the mean square.
        told_apart: whether the effects differ by more than that, at the 95 % level.
    """

    item: ShownItem
    distance: float
    noise: float
    told_apart: bool

    def __str__(self) -> str:
        """One line."""
        said = "" if self.told_apart else "; the noise hides whether they differ"
        return f"{self.item.called}: {self.distance:.4f} apart, of equal ones {self.noise:.4f}{said}"


@dataclass(frozen=True, slots=True)
class SimilarItems:
    """The items that the visits of a released model like most as they like another one: post-processing of a release.

    Attributes:
        item: the item.
        version: of the model.
        found: the most similar ones, the nearest first.
        private_as_stated: False if a release behind the model was made under a seeded key.
    """

    item: ShownItem
    version: int
    found: tuple[SimilarItem, ...]
    private_as_stated: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        found = [{**one._asdict(), "item": one.item.item} for one in self.found]
        rest = {"version": self.version, "private_as_stated": self.private_as_stated}
        return {"item": self.item.item, "similar": found, **rest}

    def as_text(self) -> str:
        """The items, one a line."""
        lines = [] if self.private_as_stated else ["REPRODUCIBLE, NOT PRIVATE"]
        lines.append(f"Most like {self.item.called}, by what visits prefer (version {self.version} of the model)")
        return "\n".join([*lines, *(f"  {one}" for one in self.found)]) + "\n"


def similar_to(table: ModelTable, item: str, most: int) -> SimilarItems:
    """The offered items whose effects are nearest to those of an item; how much each is rewarded overall is left out.

    Of two items with equal effects, the sum over C cells of squared differences over their variances is about
    chi-squared with C degrees of freedom, and smaller where the model shrinks effects towards 0. So items that are
    alike are told apart in at most some 5 % of cases. The quantile is that of Wilson and Hilferty (PNAS 1931).

    Raises:
        HushstreamError: the version has no such item.
    """
    places = {one.item: row for row, one in enumerate(table.items)}
    if item not in places:
        raise HushstreamError(
            f"model: expected an item of version {table.version}, got another; `model show` lists them"
        )
    row, cells = places[item], len(table.cells)
    squares = (table.effects - table.effects[row]) ** 2
    variances = table.deviations**2 + table.deviations[row] ** 2
    bound = cells * (1 - 2 / (9 * cells) + NormalDist().inv_cdf(0.95) * math.sqrt(2 / (9 * cells))) ** 3
    apart = (squares / variances).sum(axis=1) > bound
    others = [other for other, one in enumerate(table.items) if other != row and not one.retired]
    nearest = sorted(others, key=lambda other: float(squares[other].sum()))[:most]
    found = [
        SimilarItem(
            table.items[other],
            math.sqrt(float(squares[other].mean())),
            math.sqrt(float(variances[other].mean())),
            bool(apart[other]),
        )
        for other in nearest
    ]
    return SimilarItems(table.items[row], table.version, tuple(found), table.private_as_stated)


def read_model(
    system: P2BSystem, values: Iterable[bytes], version: int | None = None, catalogue: Catalogue | None = None
) -> ModelTable:
    """A version of the released model, the newest if none is named.

    Args:
        system: the deployment.
        values: the bytes of the records on the models topic, and on the topic of their parts if there is one.
        version: number of the version.
        catalogue: the catalogue of items, read to its end; None where items are named by numbers.

    Raises:
        HushstreamError: there is no such version.
    """
    fields = released_fields(system, values, version)
    means, variances, *_ = decode_model(system, fields).arrays
    rows, items = shown_rows(system, fields, catalogue)
    means, variances = means[rows], variances[rows]
    rate = float(means[:, 0].mean())
    return ModelTable(
        fields["version"],
        fields["observations"],
        tuple(items),
        tuple(cell_names(system.linear.layout)[1:]),
        means[:, 0],
        np.sqrt(variances[:, 0]),
        means[:, 1:],
        np.sqrt(variances[:, 1:]),
        _noise_of_features(system, fields, rate),
        fields["private_as_stated"],
        mean_reward(
            system.linear.layout,
            len(rows),
            Sample(max(1.0, fields["observations"]), 0.0, _variance(system, fields)),
            (system.linear.chance, system.config.slot.after_interactions),
            rate,
        ),
    )


def released_fields(system: P2BSystem, values: Iterable[bytes], version: int | None) -> dict[str, Any]:
    """The fields of a version's record, of the newest if none is named; arguments and errors as in `read_model`."""
    found: dict[str, Any] | None = None
    records = list(codec.readable(values))
    for name, fields in records:
        if name != system.form.model_record or fields["line"] != _LINE:
            continue
        if version == fields["version"] or (
            version is None and (found is None or fields["version"] > found["version"])
        ):
            found = fields
    if found is None:
        asked = "a released model" if version is None else f"version {version} of the model"
        raise HushstreamError(f"model: expected {asked} on topic models, got none: a version follows each window")
    if system.form.parts > 1:
        found[CONTENT] = _content(found, (fields for name, fields in records if name == PART))
    return found


def shown_rows(
    system: P2BSystem, fields: Mapping[str, Any], catalogue: Catalogue | None
) -> tuple[NDArray[np.intp], list[ShownItem]]:
    """(n,) the rows of a model that items stand in, and these items."""
    if catalogue is None:
        return np.arange(system.config.arms), [ShownItem(str(row), f"item {row}") for row in range(system.config.arms)]
    # Rows that never had an item are left out: nothing was learned in them.
    rows = np.flatnonzero(np.frombuffer(fields["entries"], "<i4") > 0)
    return rows, [_named(catalogue, int(row), fields["catalogue"]) for row in rows]


def _content(found: Mapping[str, Any], parts: Iterable[Mapping[str, Any]]) -> bytes:
    """The bytes of the arrays of a version that left in parts."""
    sets = PartSets(most=1)
    for fields in parts:
        if fields["whole"] == found["whole"] and (content := sets.take(fields).content) is not None:
            return content
    raise HushstreamError(
        f"model: expected all {found['parts']} parts of version {found['version']} on topic {MODEL_PARTS}, got fewer: "
        f"they are on their way, or older than the topic keeps them"
    )


def mean_reward(
    layout: FeatureLayout, arms: int, sample: Sample, drawn: tuple[float | None, int], rate: float
) -> MeanReward:
    """How well the mean reward of all items is known, by sampling and by the noise in their totals.

    Where the noise may be all that there is in the number of slots, nothing is known: 0 to 1.

    Args:
        layout: the layout of the sums.
        arms: number of items.
        sample: slots, and the variance of the noise in one sum.
        drawn: h and T, as in `hushstream.systems.p2b.server.estimate.warm_start`.
        rate: p, the estimated mean reward.
    """
    chance, horizon = drawn
    complete = [
        budget**2 / block.cells for block, budget in zip(layout.blocks, layout.budgets, strict=True) if block.complete
    ]
    noise = arms * sample.variance / (sum(complete) * layout.levels**2)
    if sample.slots <= _HIDDEN * math.sqrt(2.0 * noise):
        return MeanReward(0.0, 1.0, _MOST_APART)
    rate = min(max(rate, 0.0), 1.0)
    share = rate if chance is None else chance * (1.0 - (1.0 - rate) ** horizon)
    spread, residual = max(share * (1.0 - share), 1.0 / sample.slots), (1.0 - share) ** 2 + share**2
    half = NORMAL_95 * math.sqrt(spread / sample.slots + noise * residual / sample.slots**2)
    each = sample.slots / arms * spread
    apart = min(_MOST_APART, math.sqrt(each + noise / arms * residual) / each)
    low, high = (rate_of(end, chance, horizon) for end in (max(0.0, share - half), min(1.0, share + half)))
    return MeanReward(low, high, apart)


def _slope(rate: float) -> float:
    """The slope of a reward's probability in the log-odds."""
    return rate * (1.0 - rate)


def _named(catalogue: Catalogue, row: int, version: int) -> ShownItem:
    """The item that a row of a model stood for."""
    found = catalogue.of_row(row, version)
    called = found.called if found.offered else f"{found.called}, retired"
    return ShownItem(found.item, called, found.title, not found.offered)


def _noise_of_features(system: P2BSystem, fields: Mapping[str, Any], rate: float) -> dict[str, float]:
    config, layout = system.config, system.linear.layout
    arms = config.arms if config.expected_items is None else config.expected_items
    rate = min(max(rate, 1e-6), 1 - 1e-6)
    chance = system.linear.chance
    missed = (1 - rate) ** config.slot.after_interactions
    share = rate if chance is None else min(max(chance * (1 - missed), 1e-6), 0.999)
    sample = Sample(max(1.0, fields["observations"]), 0.0, _variance(system, fields))
    found = noise_of_cells(layout, arms, sample, share)
    shares = {}
    for block in layout.blocks:
        sampling = arms * block.cells / (sample.slots * share * (1 - share))
        shares[block.name or "an item's own reward"] = found[block.name] ** 2 / (found[block.name] ** 2 + sampling)
    return shares


def _variance(system: P2BSystem, fields: Mapping[str, Any]) -> float:
    """The variance of the noise in one sum behind a version. Each version adds one window, of any partition."""
    parts = system.config.partitions.shuffler
    return noise_variance(system.config, -(-fields["version"] // parts))


_GOLDEN = 12


def export_model(
    system: P2BSystem, values: Iterable[bytes], version: int | None = None, catalogue: Catalogue | None = None
) -> ExportedModel:
    """A version of the released model, the newest if none is named; arguments as in `read_model`.

    Raises:
        HushstreamError: there is no such version.
    """
    fields = released_fields(system, values, version)
    arrays = decode_model(system, dict(fields)).arrays
    rows, shown = shown_rows(system, fields, catalogue)
    schema: FeatureSchema = system.linear.layout.schema
    items = tuple(one.item for one in shown)
    golden = _golden(_Decided(system.policy(), arrays, rows, items), schema)
    about = {**_about(system, fields), "reward_variance": fields["reward_variance"]}
    return ExportedModel(about, items, golden, schema, arrays[0][rows], arrays[1][rows])


def _about(system: P2BSystem, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "system": "p2b",
        "deployment": system.config.deployment,
        "config_digest": system.digest.hex(),
        "version": fields["version"],
        "slots": fields["observations"],
        "epsilon": epsilon_float(fields["epsilon_micro"]),
        "delta": float_up(delta_value(delta_from_bytes(fields["delta_units"]))),
        "private_as_stated": fields["private_as_stated"],
        "paid": prices_json(system.paid),
    }


def successor_model(model: ExportedModel, form: FeaturesForm) -> ExportedModel:
    """An exported model for a deployment whose declared features or vocabularies were changed.

    What a feature says is kept where both declare it alike; of a category and of tags, value by value, and a new value
    of a category has what was learned of values without a cell. Of all other cells nothing is known: their means are 0,
    with the largest variance that the item has in a cell.

    Args:
        model: the newest version of the predecessor.
        form: of the deployment that is to begin with it.

    Raises:
        ConfigurationError: there is no room for its items.
    """
    layout, old, rows = form.layout, model.schema, np.arange(len(model.items))
    if old.digest == layout.schema.digest:
        return model
    require(len(rows) <= layout.arms, "items.capacity", f"at least {len(rows)}, the items of the model", layout.arms)
    means = np.zeros((len(model.items), layout.cells))
    variances = np.tile(model.variances[:, 1:].max(axis=1, keepdims=True), (1, layout.cells))
    for place, before in ((0, 0), *_kept_cells(old, layout.schema)):
        means[:, place], variances[:, place] = model.means[:, before], model.variances[:, before]
    known = started(WarmStart(means, variances, model.reward_variance), cold_start(*form.shape, 1))
    arrays = (known.means, known.variances, np.array([known.reward_variance]))
    golden = _golden(_Decided(form.policy(COLD, (PRIVATE,)), arrays, rows, model.items), layout.schema)
    return ExportedModel(model.about, model.items, golden, layout.schema, means, variances)


def left_by(core: P2BSystem, config: P2BConfig, ended: Ended) -> Mapping[str, str]:
    """See `Succession.left`: the newest model, if there is one, and what was counted and paid.

    Raises:
        ConfigurationError: the model does not fit what was changed.
    """
    before, (life, spent) = core.before, core.paid_before()
    elsewhere = NOTHING if core.start is None else core.start.paid
    known = KnownIds()
    for machine in ended.machines:
        known = known.joined(KnownIds.load(machine.windows.ids))
    found = Predecessor(
        deployment=core.config.deployment,
        generation=1 if before is None else before.generation + 1,
        configuration=core.digest.hex(),
        edge_key=ended.key_ids[EDGE_ZONE],
        ledger=ended.ledger,
        marks=ended.marks,
        life=life,
        spent=spent,
        elsewhere=elsewhere if before is None else before.elsewhere,
        ids=known.dump(),
        private_as_stated=core.private_as_stated,
    )
    given = {FOLLOWS.name: json.dumps(found.plain)}
    declared = core.config.release.form == config.release.form == "features"
    if not declared or not any(name == core.form.model_record for name, _ in codec.readable(ended.models)):
        return given
    model = export_model(core, ended.models, None, ended.catalogues.get(EVERYBODY))
    return {**given, STARTED_FROM.name: successor_model(model, FeaturesForm.of(config)).as_json().decode()}


def _kept_cells(old: FeatureSchema, new: FeatureSchema) -> Iterator[tuple[int, int]]:
    """The cells of a model that are known under the new declaration: (new, old), counted behind the constant's."""
    before = {block.name: block for block in old.table}
    for block in new.table:
        if block.name in before:
            for place, cell in enumerate(_cells_before(block.name, old, new)):
                if cell is not None:
                    yield block.first_cell + place + 1, before[block.name].first_cell + cell + 1


def _cells_before(name: str, old: FeatureSchema, new: FeatureSchema) -> Sequence[int | None]:
    """For each cell of a feature the one that said before what is known of it; empty if nothing is known."""
    was, is_now = old.features[name], new.features[name]
    of = (is_now.left, is_now.right) if isinstance(is_now, Cross) else ()
    if was == is_now and all(old.features[one] == new.features[one] for one in of):
        return range(is_now.cells)
    if type(was) is not type(is_now) or not (isinstance(was, Entries) and isinstance(is_now, Entries)):
        return ()
    # The last cell is that of values without an entry, as was every value of a category that has one only now.
    last, numbers = len(was.vocabulary), {entry: number for number, entry in enumerate(was.vocabulary)}
    unnamed = last if isinstance(is_now, Category) else None
    return [*(numbers.get(entry, unnamed) for entry in is_now.vocabulary), last]


class _Decided:
    """The decisions of the learner's kernel for a user who was never seen."""

    def __init__(
        self, policy: SharedPolicy, arrays: tuple[Float64, ...], rows: NDArray[np.intp], items: Sequence[str]
    ) -> None:
        """Load a model's arrays; ``rows`` are those that items stand in."""
        self._policy, self._rows, self._items = policy, rows, items
        self._policy.adopt(PRIVATE, 1, *arrays[:3])

    def of(self, context: Mapping[str, Any], encoded: NDArray[Any]) -> Golden:
        """The decision for a context; the kernel gets its encoded form."""
        state = self._policy.shared(PRIVATE).state
        scores = np.asarray(self._policy.scores(state, encoded), dtype=np.float64)[self._rows]
        return Golden(context, scores.tolist(), self._items[int(scores.argmax())])


def _golden(decided: _Decided, schema: FeatureSchema) -> tuple[Golden, ...]:
    """Decisions for made-up contexts with declared features."""
    rows = ((context, schema.encode(context).row) for context in _contexts(schema))
    return tuple(decided.of(context, np.frombuffer(row, np.uint8)) for context, row in rows)


def _contexts(schema: FeatureSchema) -> list[dict[str, Any]]:
    """Made-up contexts in which each feature takes its example values in turn; the first one has no values.

    None comes from a user.
    """
    features = schema.features.items()
    examples = {name: _values_of(feature) for name, feature in features if not isinstance(feature, Cross)}
    found: list[dict[str, Any]] = [{}]
    for number in range(_GOLDEN - 1):
        found.append({name: some[(number + place) % len(some)] for place, (name, some) in enumerate(examples.items())})
    return found


def _values_of(feature: Feature) -> list[Any]:
    match feature:
        case Category():
            return [*feature.vocabulary[:5], "something else", None]
        case Number():
            low, high = feature.low, feature.high
            return [low, high, low + (high - low) / 3, high + (high - low), None]
        case Boolean():
            return [True, False, None]
        case DayOfWeek():
            return [1, 4, 7]
        case Tags():
            return [[], list(feature.vocabulary[:1]), list(feature.vocabulary[: feature.most]), ["something else"]]
        case Embedding():
            return [[1.0, *[0.0] * (feature.count - 1)], [-0.5 / feature.count] * feature.count, None]
        case Histogram():
            return [[1.0, *[0.0] * (feature.count - 1)], [1.0 / feature.count] * feature.count]
    return [0.0, 7.5, 23.0]
