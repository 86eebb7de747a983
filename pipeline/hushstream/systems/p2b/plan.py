"""The plan of a p2b deployment: what it will bring, from its configuration and the expected number of users.

It turns configuration and days into the arguments of `hushstream.systems.p2b.forecast`. Slots count
after their window has closed. Nobody knows beforehand what users do, so the spreads of effects are assumed. The result
is a range over them (`ASSUMED_ENDS`), which `hushstream experiment forecast` judges by drawn worlds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hushstream.engine.declare.declaration import Note
from hushstream.engine.declare.plan import (
    DAYS,
    Audience,
    Plan,
    Point,
    Range,
    first_day,
    lives_of,
)
from hushstream.engine.devices.sealing import SEALING_BYTES
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.sentence import price_text
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.edge.agent import click_chance
from hushstream.systems.p2b.forecast import (
    MOST_VISITS,
    Forecast,
    Sample,
    Spreads,
    UserBehaviour,
    forecast_codes,
    forecast_features,
    noise_of_cells,
    slot_share,
)
from hushstream.systems.p2b.guarantee import (
    layout_of_slots,
    life_prices,
    lifetime_slots_of,
    noise_variance,
    resolve_codes,
    resolve_threshold,
    summed_of,
    window_tree_of,
)
from hushstream.systems.p2b.lift import SHOWN, controls_of, guardrail_tree, smallest_effect, users_needed
from hushstream.systems.p2b.server.prior import vector_length
from hushstream.systems.p2b.server.totals import remembered
from hushstream.systems.p2b.slots import LEAST_SHAPED

ASSUMED_ARMS, ASSUMED_FEATURE, ASSUMED_FEATURES, ASSUMED_REST, ASSUMED_RATE = 0.25, 0.2, 0.6, 0.4, 0.05
"""Assumed deviations on log-odds: of an item's own effect, of a feature, of all features together (at most), and of
effects that nobody can learn; and the share of visits that reward a random item."""


class End(NamedTuple):
    """An end of the range, or its middle.

    Attributes:
        items, features: factors of the spreads of items' own effects and of features.
        luck: a share of own learning's reward that an unlucky release loses.
        alike: share of the variance of items' effects that follows their features.
    """

    items: float
    features: float
    luck: float = 0.0
    alike: float = 0.3


ASSUMED_ENDS = (End(0.5, 0.75, 0.1, 0.0), End(1.0, 1.0), End(4.2, 1.4, 0.0, 0.6))
"""The range where spreads are assumed: fitted on 100 drawn worlds, judged by 40 others (`hushstream experiment
forecast`). Of 105 worlds on which it was not fitted it held 96; what one item far above all others brings is missed."""

MEASURED_ENDS = (End(0.5**0.5, 0.5**0.5, alike=0.0), End(1.0, 1.0), End(2.0**0.5, 2.0**0.5, alike=0.6))
"""The range where spreads were measured on a log."""

CODES_ENDS = (End(0.5, 0.25, 0.1), End(1.0, 1.0), End(8.0, 8.0))
"""The range of codes, whose worlds differ far more: fitted on 40 drawn worlds of histograms, it held 37 of 40 others
(`hushstream experiment forecast`); that of declared features held 27 of 80."""

LOW, MIDDLE, HIGH = range(3)
OWN, SINGLE, THIS = "own learning", "the best single item", "this deployment"
"""Names of values."""

LEAST_HOURS, MOST_SECONDS = 7 * 24, 30 * 86_400
"""A measurement whose releases last no longer, or are further apart, tells nothing of use."""

_GRADED = ", if each reward were whole (--click-rate: their mean)"

_HARM_RATE = 0.01
"""How often a guardrail's harm is supposed to come, as nobody states it."""

LEAST_GAIN = 0.02
"""Share of a rival's reward (own learning, the best single item): a smaller gain does not count."""

_LEARNER_MB, _USER_KB, _OTHER_MB, _STATE_KB = 130, 5, 124, 1.0
"""Measured (deploy/docs/sizing.md, *Memory* and *State on disk*): a learner and each of its users in memory, each
other role, and a user on disk."""

_CONTEXT, _NUMBER, _CLICK, _DECISION, _BROKER, _REPORT, _WINDOW = 55, 4, 56, 36, 16, 82, 489
"""Bytes (ibid., *Disk*): a context beside its numbers, each of them, an answer, a decision, what a broker adds to two
records, a slot, and a window beside its sums."""


class Measurable(NamedTuple):
    """Whom `hushstream lift` counts.

    Attributes:
        opened, ends: the day of the first model, and of the measurement's last release.
        counted: users who come between.
    """

    opened: int
    ends: float
    counted: int


@dataclass(frozen=True, slots=True)
class Forecaster:
    """Forecasts for a configuration and an audience, day by day.

    Attributes:
        config: of the deployment.
        audience: the expected users.
        spreads: assumed, or measured.
        measured: whether they were measured on a log.
    """

    config: P2BConfig
    audience: Audience
    spreads: Spreads
    measured: bool = False

    @property
    def ends(self) -> tuple[End, End, End]:
        """How far the spreads may be off: the range's low end, middle and high end."""
        if self.measured:
            return MEASURED_ENDS
        return ASSUMED_ENDS if self.config.release.form == "features" else CODES_ENDS

    @property
    def behaviour(self) -> UserBehaviour:
        """What users do, as the forecast takes it."""
        config = self.config
        rate = config.click_rate
        features = config.release.form == "features"
        # Uniform histograms with d entries have a mean squared length of 2/(d + 1), the variance of a cold score.
        bonus = 1.0 if features else math.sqrt(2.0 / (config.context.dimension + 1))
        arms = config.arms if config.expected_items is None else config.expected_items
        shapes = config.item_features is not None and arms >= LEAST_SHAPED
        return UserBehaviour(
            arms=arms,
            visits=self.audience.visits,
            before_slot=max(1, self.ended) if features else config.slot.after_interactions,
            chance=click_chance(rate) if features and rate is not None else None,
            bonus=bonus,
            returning=features,
            item_features=vector_length(config.item_features) if shapes else 0,
        )

    def slots(self, day: float) -> float:
        """Slots that were sent by the end of a day."""
        users = self.audience.users
        return sum(min(users, self.audience.reached(visit, day)) for visit in self.due_visits())

    def due_visits(self) -> Iterator[int]:
        """The numbers of the visits at which a user's slots fall due, up to the user's last visit."""
        slot, visit = self.config.slot, 0
        step = self.audience.step * 86_400
        # The next slot begins with the first visit at which it may.
        between = 1 if slot.renew_every_seconds is None else max(1, math.ceil(slot.renew_every_seconds / step))
        for number in range(lifetime_slots_of(self.config)):
            visit += slot.after_interactions if not number else between + slot.after_interactions - 1
            if visit > self.audience.visits:
                return
            yield visit

    def windows(self, day: float) -> int:
        """Windows of one partition that have closed by the end of a day."""
        release = self.config.release
        full = int(self.slots(day) / self.config.partitions.shuffler // release.window_slots)
        if release.window_seconds is not None and self.slots(day) > 0:
            full = max(full, int(day * 86_400 // release.window_seconds))
        tree = window_tree_of(self.config)
        return full if tree is None else min(full, tree.horizon)

    def sample(self, day: float) -> Sample:
        """What was released by the end of a day; if windows fade, their effective number of slots."""
        release, windows = self.config.release, self.windows(day)
        slots = self.slots(day)
        if release.window_seconds is None:
            slots = min(slots, windows * release.window_slots * self.config.partitions.shuffler)
        elif not windows:
            slots = 0.0
        sent = slots * release.sampling * (remembered(self.config, windows).share if windows else 1.0)
        made = min(self.audience.users * self.audience.visits, self.audience.visited(day))
        return Sample(sent, made, noise_variance(self.config, windows) if self.sums else 0.0)

    @property
    def ended(self) -> int:
        """How many visits of a report have no reward to wait for when it leaves, at the least."""
        slot, step = self.config.slot, 86_400 * self.audience.step
        waits = math.ceil((self.config.feedback.attribution_window_seconds - slot.settle_seconds) / step)
        return slot.after_interactions - min(max(waits, 0), slot.after_interactions)

    @property
    def sums(self) -> bool:
        """Whether noised sums leave the shuffler; else tuples do, or nothing (`withheld`)."""
        return self.config.release.mode == "slot-sums"

    @property
    def withheld(self) -> bool:
        """Whether reports are null, or an average crowd of rewarded tuples stays below the threshold for a year."""
        if self.sums:
            return self.config.release.form == "features" and not self.ended
        cells = self.config.arms * resolve_codes(self.config)
        rewarded = self.sample(DAYS[-1]).slots / cells * slot_share(self.spreads, self.behaviour)
        return rewarded < resolve_threshold(self.config)

    @property
    def measurable(self) -> Measurable | None:
        """Whom a measurement counts; None if no release ever comes."""
        asked, audience = self.config.measurement, self.audience
        opened, ends = first_day(lambda day: self.windows(day) > 0), asked.every_seconds * asked.releases / 86_400
        if opened is None:
            return None
        counted = int(audience.users * max(0.0, min(audience.days, ends) - opened) / audience.days)
        return Measurable(opened, ends, counted)

    @property
    def worth(self) -> float:
        """A counted user in users of whom as many decisions count as may: of sampling and of noise (`users_needed`)."""
        return min(1.0, self.audience.visits / self.config.measurement.decisions_per_user)

    @property
    def detected(self) -> float:
        """The smallest difference of mean rewards that the measurement tells with power 80 %; infinite for none."""
        config, measured = self.config, self.measurable
        if measured is None or not measured.counted:
            return math.inf
        users = measured.counted * self.worth
        return max(
            (smallest_effect(config, group, users, self.spreads.rate) for group in controls_of(config.measurement)),
            default=math.inf,
        )

    def needed(self, effect: float) -> int:
        """How many users must begin with a model so that the measurement tells a difference with power 80 %."""
        config, controls = self.config, controls_of(self.config.measurement)
        return max(math.ceil(users_needed(config, one, effect, self.spreads.rate) / self.worth) for one in controls)

    @property
    def early(self) -> str:
        """Of which visits of a user the law tells, if not of all, in words."""
        return f" over the first {MOST_VISITS} visits" if self.audience.visits > MOST_VISITS else ""

    @property
    def measure(self) -> str:
        """The quantity of the forecast, in words; how much graded rewards are worth is known from ``rate`` alone."""
        graded = self.config.release.levels > 1 and self.audience.rate is None and not self.measured
        return f"reward a visit of a new user{self.early}{_GRADED if graded else ''}"

    def at(self, day: float, end: int = MIDDLE) -> Forecast:
        """The rewards of new users at the end of a day, in the middle or at an end of the range."""
        return self.under(self.ends[end], day)

    def under(self, end: End, day: float) -> Forecast:
        """The same under other factors."""
        config, sample, (items, features, luck, alike) = self.config, self.sample(day), end
        spreads, luck = self.spreads.times(items, features, alike), luck if sample.slots else 0.0
        if config.release.form == "features":
            found = forecast_features(layout_of_slots(config), spreads, self.behaviour, sample)
        else:
            sample = replace(sample, variance=sample.variance / config.release.levels**2)
            found = forecast_codes(config.context.dimension, resolve_codes(config), spreads, self.behaviour, sample)
        drawn = config.exploration.share if config.exploration.choice == "epsilon" else 0.0
        return (replace(found, private=found.cold) if self.withheld else found.unlucky(luck)).drawn(drawn, spreads.rate)

    def better(self, end: int) -> int | None:
        """The first day on which a new user is better off with a release than without a model; None for none."""
        return first_day(lambda day: _better(self.at(day, end)))


def assumed_spreads(config: P2BConfig, rate: float | None = None) -> Spreads:
    """Assumed spreads; the rate is the given one, else the declared one, else an assumed one."""
    given = rate if rate is not None else config.click_rate
    found = ASSUMED_RATE if given is None or not 0 < given < 1 else given
    if config.release.form != "features":
        return Spreads(ASSUMED_ARMS, {"context": ASSUMED_FEATURES}, ASSUMED_REST, found)
    return assumed_for([block.name for block in config.context.schema.table], found)


def assumed_for(features: Sequence[str], rate: float) -> Spreads:
    """Assumed spreads of declared features, of which only the names are known."""
    each = min(ASSUMED_FEATURE, ASSUMED_FEATURES / math.sqrt(len(features)))
    return Spreads(ASSUMED_ARMS, dict.fromkeys(features, each), ASSUMED_REST, rate)


def plan(config: P2BConfig, audience: Audience, measured: Spreads | None = None, source: str = "") -> Plan:
    """The plan of a deployment; see the module. Effects that were measured, as ``source`` says, are not assumed."""
    spreads = measured or assumed_spreads(config, audience.rate)
    ahead = Forecaster(config, audience, spreads, measured is not None)
    ends = [ahead.at(DAYS[-1], end) for end in (LOW, MIDDLE, HIGH)]
    days = _days(ahead)
    controls, gain = controls_of(config.measurement), ends[MIDDLE].gain
    beats, verdict = _verdict(ahead, days, ends[MIDDLE])
    if beats is not False:
        verdict = f"{_late(ahead, days[MIDDLE])}{verdict} {_against_single(ahead, ends)}"
    return Plan(
        system=config.system,
        measure=ahead.measure,
        values={
            OWN: _range([end.cold for end in ends]),
            SINGLE: _range([end.single for end in ends]),
            THIS: _range([end.private for end in ends]),
            "without privacy": _range([end.open for end in ends]),
        },
        beats=beats,
        verdict=verdict,
        doubt=_doubt(beats, ends[MIDDLE], spreads.rate),
        points=tuple(_point(ahead, day) for day in sorted({*DAYS, *filter(None, days[MIDDLE : MIDDLE + 1])})),
        first_day=days,
        unit="reports",
        paid="report",
        noise=_noise(ahead),
        lives=lives_of(
            lambda day: sum(visit <= audience.of_one(day) for visit in ahead.due_visits()),
            lambda slots: life_prices(config, slots),
        ),
        sizes=_sizes(ahead),
        assumed=(*([source] if source else []), *_assumptions(ahead)),
        notes=tuple(_measured(ahead)),
        facts={
            "gain": gain,
            "detects": ahead.detected if controls else None,
            "needed": ahead.needed(gain) if controls and gain > 0 else None,
            "spreads": {"items": spreads.arms, **spreads.blocks, "rest": spreads.rest},
            "rate": spreads.rate,
        },
    )


def audience(config: P2BConfig) -> Audience:
    """The expected users of a configuration, each with just enough visits for all their reports, within a year."""
    return Audience.of_a_year(config.expected_slots, config.slot.after_interactions * lifetime_slots_of(config))


def warnings(config: P2BConfig) -> tuple[Note, ...]:
    """Warnings for the check of a configuration: no window ever closes, its plan sees no sure gain, and more."""
    ahead = Forecaster(config, audience(config), assumed_spreads(config))
    beats, verdict = _verdict(ahead, _days(ahead), ahead.at(DAYS[-1]))
    said = Note(
        f"with the {count_text(config.expected_slots, 'report', ',')} expected: {verdict}",
        "useless" if beats is False else "warning",
    )
    return (
        *_never_closed(config),
        *(() if beats else (said,)),
        *map(Note, _early(config)),
        *map(Note, _useless(ahead)),
    )


def _never_closed(config: P2BConfig) -> tuple[Note, ...]:
    """Whether all expected slots together do not fill one window, where no time closes windows."""
    slots, parts = config.expected_slots * config.slot.lifetime_slots, config.partitions.shuffler
    window = config.release.window_slots
    if config.release.window_seconds is not None or window * parts <= slots:
        return ()
    most = slots // parts
    smaller = f"release.window_units of at most {most:,}" if most else f"expected_slots of at least {window * parts:,}"
    return (
        Note(
            f"release.window_units: a window closes at {window:,} reports of each of "
            f"{count_text(parts, 'partition')}, and {slots:,} are expected in the whole life (expected_slots times "
            f"privacy.units_per_person): nothing would ever be released. State {smaller}, or release.window_seconds",
            "never",
        ),
    )


def _measured(ahead: Forecaster) -> Iterator[str]:
    """What `hushstream lift` can tell of such an audience, by group: of users who begin with a model before it ends."""
    config, rate, asked = ahead.config, ahead.spreads.rate, ahead.config.measurement
    if not (controls := controls_of(asked)) or (measured := ahead.measurable) is None:
        return
    (opened, ends, counted), worth = measured, ahead.worth
    yield (
        f"`hushstream lift` counts {counted:,} of these users: those who begin with a model, from day {opened} on, and "
        f"while its one charge pays for releases, to day {ends:,.3g}"
    )
    most, tenth = min(asked.decisions_per_user, ahead.audience.visits), rate / 10
    for group in controls if counted else ():
        smallest = smallest_effect(config, group, counted * worth, rate)
        yield (
            f"against {SHOWN[group]} it shows a difference of {smallest:.2g} rewards a decision or more (power 80 %; "
            f"{count_text(most, 'decision')} of each, rate {rate:.2%}); one of {tenth:.2g} (a tenth of the rate) takes "
            f"{users_needed(config, group, tenth, rate) / worth:,.0f} users"
        )
        if (harm := asked.guardrail) is not None:
            smallest = smallest_effect(config, group, counted * worth, _HARM_RATE, guardrail_tree)
            yield f"of its guardrail, {harm}, it shows a difference of {smallest:.2g} or more (rate {_HARM_RATE:.0%})"


def _useless(ahead: Forecaster) -> Iterator[str]:
    """Warnings of a measurement that ends early, comes late, or tells nothing."""
    config, asked = ahead.config, ahead.config.measurement
    if asked.counts and (asked.of == "answers") != (config.mode == "shadow"):
        yield f"measurement.of: answers goes with mode: shadow, groups with mode: live; it is {asked.of}, {config.mode}"
    hours = asked.every_seconds * asked.releases / 3600
    if asked.counts and hours < LEAST_HOURS:
        yield (
            f"measurement.every_seconds: {asked.releases} releases (measurement.releases), one each "
            f"{asked.every_seconds:g} s, are used up after {hours:.3g} hours, and nothing is released after them; "
            f"state at least {math.ceil(LEAST_HOURS * 3600 / asked.releases):,} s, or more releases"
        )
    if asked.counts and asked.every_seconds > MOST_SECONDS:
        yield f"measurement.every_seconds: the first figure comes after {asked.every_seconds / 86_400:.3g} days"
    if not controls_of(asked):
        return
    measured, smallest, gain = ahead.measurable, ahead.detected, ahead.at(DAYS[-1]).gain
    counted = 0 if measured is None else measured.counted
    if not counted:
        yield (
            "measurement: no user begins with a model in time to be counted, so its epsilon buys nothing: delete "
            "measurement, or have models come earlier"
        )
    elif smallest > gain:
        yield (
            f"measurement: {counted:,} users of the expected {ahead.audience.users:,} begin with a model in "
            f"time to be counted; they show no difference below {smallest:.2g} rewards a decision, and the gain over "
            f"own learning is forecast to be {gain:.2g}: raise measurement.epsilon, the shares or "
            "measurement.every_seconds, or delete measurement"
        )


def _early(config: P2BConfig) -> tuple[str, ...]:
    """A warning if slots may leave before rewards can have come."""
    settles, window = config.slot.settle_seconds, config.feedback.attribution_window_seconds
    if settles >= window:
        return ()
    held = (
        "are left out of it (if all are, the report is null)"
        if config.release.form == "features"
        else "are only in it if they were rewarded"
    )
    return (
        f"feedback.settle_seconds: a report leaves {settles:g} to {2 * settles:g} s after its last visit, and a reward "
        f"may take {window:g} s (feedback.attribution_window_seconds): visits that still wait for a reward {held}; "
        f"state at least {window:g}",
    )


def _renewed(config: P2BConfig) -> tuple[str, ...]:
    every, slots = config.slot.renew_every_seconds, lifetime_slots_of(config)
    if every is None:
        return ()
    return (
        f"a user who comes back gets a new report {every / 86_400:.3g} days after one fell due, and {slots} in their "
        f"life, which cost {price_text(life_prices(config, slots).which)} together",
    )


def _forgotten(config: P2BConfig) -> tuple[str, ...]:
    if config.half_life is None:
        return ()
    windows = remembered(config, 1 << 40)
    worth = windows.share * (1 << 40) * config.partitions.shuffler
    return (
        f"with model.half_life {config.half_life:g} the model is worth at most {worth:,.3g} windows of "
        f"{config.release.window_slots:,} reports, however many were released; reports are given as they are worth",
    )


def _days(ahead: Forecaster) -> tuple[int | None, int | None, int | None]:
    """The first better day for the largest, the expected and the smallest effects."""
    return (ahead.better(HIGH), ahead.better(MIDDLE), ahead.better(LOW))


def _against_single(ahead: Forecaster, ends: Sequence[Forecast]) -> str:
    """Whether it beats one item for everybody, which needs no learning of anybody's tastes, in a sentence.

    One item is hardest to beat where items differ most and features tell least, which is no end of the gain's range.
    """
    corner = ahead.under(ahead.ends[LOW]._replace(items=ahead.ends[HIGH].items), DAYS[-1])
    if all(end.private > end.single for end in (corner, *ends)):
        return "It is expected to beat the best single item for everybody, too."
    ours, single = ends[MIDDLE].private, ends[MIDDLE].single
    figures = f"({single:.3g} against {ours:.3g} a visit)"
    if single < ours < (1 + LEAST_GAIN) * single:
        return f"There is no clear gain over the best single item for everybody {figures}."
    if ours > single:
        return f"The best single item for everybody should earn less {figures}, but may earn more."
    return f"The best single item for everybody is expected to earn more {figures}."


def _doubt(beats: bool | None, end: Forecast, rate: float) -> str:
    """What it is not sure to beat, though that costs no privacy; empty: it beats own learning and one item for all."""
    if not beats:
        return "may not beat users' own learning"
    if end.private >= (1 + LEAST_GAIN) * end.single:
        return ""
    return (
        f"is not expected to earn {LEAST_GAIN:.0%} more than the best single item for everybody ({end.private:.3g} "
        f"against that item's {end.single:.3g} a visit; an item at random earns {rate:.3g})"
    )


def _better(found: Forecast) -> bool:
    return found.gain > LEAST_GAIN * found.cold


def _verdict(
    ahead: Forecaster, days: tuple[int | None, int | None, int | None], end: Forecast
) -> tuple[bool | None, str]:
    config = ahead.config
    if ahead.audience.visits < config.slot.after_interactions:
        return False, (
            "It will not beat own learning: "
            f"a report is due after {count_text(config.slot.after_interactions, 'visit')}, and a user makes "
            f"{ahead.audience.visits}, so nothing is ever released. Set slot.after_interactions to at most that."
        )
    if not ahead.windows(DAYS[-1]):
        return False, (
            f"It will not beat own learning: a window closes at "
            f"{count_text(config.release.window_slots, 'report', ',')} of "
            f"{'a partition' if (parts := config.partitions.shuffler) == 1 else f'each of {parts} partitions'}, "
            f"and within a year there are {ahead.slots(DAYS[-1]):,.0f}."
        )
    waits = f"feedback.settle_seconds of at least {config.feedback.attribution_window_seconds:g}"
    if ahead.withheld and ahead.sums:
        return False, (
            "It will not beat own learning: a report leaves before the wait for rewards of any of its visits ends, so "
            f"it is null. State {waits}."
        )
    if ahead.withheld:
        return False, (
            "It will not beat own learning: counts of rewarded tuples stay below the threshold of "
            f"{resolve_threshold(config)}, so they are withheld, and the model learns from unrewarded visits alone."
        )
    if days[0] is None:
        return False, "It will not beat own learning in a year as assumed, even with large effects: noise is too much."
    if config.release.form == "codes" and 2 * ahead.ended < config.slot.after_interactions:
        return None, (
            "It may or may not beat own learning: a report leaves before rewards of most of its visits can have come, "
            f"and holds one of these only if it was rewarded. State {waits}."
        )
    kept = f"after a year it keeps {end.share or 0.0:.2f} of the non-private gain"
    if days[2] is None:
        expected = f"that depends on how large effects are. Expected: {kept}."
        return None, f"It may or may not beat own learning{ahead.early}: {expected}"
    effects = "measured" if ahead.measured else "assumed"
    return True, f"It will beat own learning{ahead.early} if effects are in the range {effects}; {kept}."


def _late(ahead: Forecaster, first: int | None) -> str:
    """How few of the stated users come after a better model, if under half of them, as a sentence before another."""
    audience = ahead.audience
    early = 1.0 if first is None else first / audience.days
    if first is None or early <= 0.5:
        return ""
    if early < 1.0:
        return f"A better model comes late: on day {first}, and {1 - early:.0%} of these users come after it. "
    return (
        f"Too late for these users, of whom the last comes on day {round(audience.days, 1):g}: the first better model "
        f"comes on day {first}. For later users: "
    )


def _point(ahead: Forecaster, day: int) -> Point:
    shares = [share for end in (LOW, MIDDLE, HIGH) if (share := _share(ahead, day, end)) is not None]
    return Point(day, ahead.sample(day).slots, _range(shares) if len(shares) == len(ahead.ends) else None)


def _range(values: Sequence[float]) -> Range:
    """A range from a figure at the low end, in the middle and at the high end. The bounds are sorted."""
    return Range(min(values), values[MIDDLE], max(values))


def _share(ahead: Forecaster, day: int, end: int) -> float | None:
    """The share of the non-private gain, at least 0: a model without information is as good as none."""
    if not ahead.windows(day):
        return 0.0
    share = ahead.at(day, end).share
    return None if share is None else min(1.0, max(0.0, share))


def _noise(ahead: Forecaster) -> tuple[str, ...]:
    config, sample = ahead.config, ahead.sample(DAYS[-1])
    if not ahead.sums:
        return (f"tuples of fewer than {resolve_threshold(config)} reports are withheld; the others bear no noise",)
    if not sample.slots:
        return ("nothing is released within a year",)
    deviation = math.sqrt(sample.variance)
    if config.release.form != "features":
        cells = config.arms * resolve_codes(config)
        each = sample.slots / cells
        return (
            f"each of {count_text(cells, 'cell', ',')} (code, item): noise of standard "
            f"deviation {deviation / config.release.levels:.3g} on {each:,.0f} reports, after a year",
        )
    layout, behaviour = layout_of_slots(config), ahead.behaviour
    found = noise_of_cells(layout, behaviour.arms, sample, slot_share(ahead.spreads, behaviour))
    texts = []
    for block, budget in zip(layout.blocks, layout.budgets, strict=True):
        name = f"{block.name} ({count_text(block.cells, 'cell')})" if block.name else "item totals"
        of = "one item and cell" if block.name else "one item, after a year"
        off = deviation / (budget * layout.levels)
        signal = ahead.spreads.blocks.get(block.name, ahead.spreads.arms)
        height = "well below" if 2 * found[block.name] < signal else "below" if found[block.name] < signal else "above"
        texts.append(
            f"{name}: noise of {found[block.name]:.2g}, {height} effects of {signal:.2g} (log-odds); a sum "
            f"of {sample.slots / behaviour.arms / block.cells:,.0f} reports ({of}) has {off:,.3g}"
        )
    return tuple(texts)


def _sizes(ahead: Forecaster) -> Mapping[str, str]:
    config, audience = ahead.config, ahead.audience
    parts, visits = config.partitions, audience.users * audience.visits
    day = visits / audience.days
    numbers = config.context.dimension * _NUMBER
    context = _CONTEXT + (numbers if config.release.form == "codes" else config.context.schema.row_bytes)
    users = audience.users
    week = 0.0 if config.devices else 7 * day * (context + 2 * _CLICK + _BROKER)
    sums, report = 8 * summed_of(config).sums[0], _REPORT + SEALING_BYTES * config.devices
    ever = ahead.windows(365.0) * parts.shuffler * (2 * sums + _WINDOW) + (0 if config.devices else visits * _DECISION)
    sizes = {
        "partitions": f"learner {parts.learner}, shuffler {parts.shuffler}: at most so many workers share the work",
        "learner, memory": f"{_LEARNER_MB + users * _USER_KB / 1000:,.0f} MB for these {users:,} users, all "
        "resident, over all its workers (users.expire_after_seconds and --resident lower it)",
        "shuffler, aggregator, memory": f"{_OTHER_MB} MB each, and a window's reports",
        "learner, state on disk": f"{users * _STATE_KB / 1000:,.0f} MB for them",
        "broker, kept for days": f"{(week + 7 * ahead.slots(365.0) / audience.days * report) / 1e6:,.0f} MB "
        "for each copy",
        "broker, kept for ever": f"{ever / 1e6:,.0f} MB for each copy, unless journals are trimmed",
    }
    if config.devices:
        sizes["partitions"] = sizes["partitions"].partition(", ")[2]
    return {name: size for name, size in sizes.items() if not (config.devices and name.startswith("learner"))}


_HELD = "nine of ten simulated worlds of 1,000 to 20,000 reports gained within this range, most others more"
_HELD_CODES = (
    "nine of ten simulated worlds of 1,000 to 17,000 reports gained within this range, TMC2007 far more: 192 reports "
    "raised its reward from .33 to .51"
)


def _assumptions(ahead: Forecaster) -> tuple[str, ...]:
    config, audience, spreads, (low, _, high) = ahead.config, ahead.audience, ahead.spreads, ahead.ends
    blocks = sorted({round(value, 3) for value in spreads.blocks.values()})
    least, most = f"{blocks[0]:g}", f" to {blocks[-1]:g}" if len(blocks) > 1 else ""
    given = spreads.rate in (audience.rate, config.click_rate)
    source = "measured" if ahead.measured else "as given" if given else "a guess: --click-rate"
    features = config.release.form == "features"
    what = "each feature" if features else "the whole context"
    drawn = "" if ahead.measured else _HELD if features else _HELD_CODES
    return (
        f"spreads (standard deviations on log-odds): {spreads.arms:.3g} over items, {least}{most} of {what}, "
        f"{spreads.rest:g} of what nobody can learn",
        f"low end: spread over items times {low.items:.2g}, of {what} times {low.features:.2g}"
        + (f", and an unlucky release costs {low.luck:.0%} of own learning's reward" if low.luck else ""),
        f"high end: spread over items times {high.items:.2g}, of {what} times {high.features:.2g}",
        *([drawn] if drawn else []),
        "what two features do only together is not learned, unless their cross is declared",
        f"a random item is rewarded in {spreads.rate:.2%} of visits ({source})",
        f"{count_text(audience.users, 'new user', ',')} come evenly within {count_text(audience.days, 'day', 'g')}; "
        f"each makes {count_text(audience.visits, 'visit')}, one every {audience.step:.3g} days; tastes do not change, "
        + ("nor features of a user" if features else "contexts do at each visit"),
        *_like_their_features(ahead),
        *_renewed(config),
        *_forgotten(config),
        *_early(config),
        *(["chances that softmax draws are not in it"] if config.exploration.choice == "softmax" else []),
    )


def _like_their_features(ahead: Forecaster) -> Iterator[str]:
    if ahead.behaviour.item_features:
        low, middle, high = (f"{end.alike:.0%}" for end in ahead.ends)
        yield f"of the variance of items' effects {middle} follows their features, {low} to {high} in the range"
