"""The plan of a p2b deployment: what it will bring, from its configuration and the expected number of users.

It turns configuration and days into the arguments of `hushstream.systems.p2b.reports.planning.forecast`. Slots count
after their window has closed. Nobody knows beforehand what users do, so the spreads of effects are assumed. The result
is a range, from all effects smaller by a factor sqrt(2) to all effects larger by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hushstream.engine.declare.plan import (
    DAYS,
    Audience,
    Plan,
    Point,
    first_day,
    lives_of,
    ranged,
)
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.sentence import price_text
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.edge.candidates import click_chance
from hushstream.systems.p2b.guarantee.promise import (
    layout_of_slots,
    life_prices,
    lifetime_slots_of,
    noise_variance,
    window_tree_of,
)
from hushstream.systems.p2b.guarantee.summed import resolve_codes, resolve_threshold, summed_of
from hushstream.systems.p2b.reports.planning.forecast import (
    Forecast,
    Sample,
    Spreads,
    UserBehaviour,
    code_share,
    forecast_codes,
    forecast_features,
    noise_of_cells,
    slot_share,
)
from hushstream.systems.p2b.reports.planning.holdout_size import ASSUMED_SHARE, HoldoutNeed, holdout_users
from hushstream.systems.p2b.server.forgetting import remembered

ASSUMED_ARMS, ASSUMED_FEATURE, ASSUMED_FEATURES, ASSUMED_REST, ASSUMED_RATE = 0.25, 0.2, 0.6, 0.4, 0.05
"""Assumed deviations on log-odds: of an item's own effect, of a feature, of all features together (at most), and of
effects that nobody can learn; and the share of visits that reward a random item."""

FACTORS = (math.sqrt(0.5), 1.0, math.sqrt(2.0))
"""The range is computed with all spreads times each of these."""

LEAST_GAIN = 0.02
"""Share of cold learners' reward: a smaller gain does not count."""

_LEARNER_MB, _USER_KB, _OTHER_MB, _STATE_KB = 130, 5, 124, 1.0
"""Measured (deploy/docs/sizing.md, *Memory* and *State on disk*): a learner and each of its users in memory, each
other role, and a user on disk."""

_CONTEXT, _NUMBER, _CLICK, _DECISION, _BROKER, _REPORT, _WINDOW = 55, 4, 56, 36, 16, 82, 489
"""Bytes (ibid., *Disk*): a context beside its numbers, each of them, an answer, a decision, what a broker adds to two
records, a slot, and a window beside its sums."""


@dataclass(frozen=True, slots=True)
class Forecaster:
    """Forecasts for a configuration and an audience, day by day.

    Attributes:
        config: of the deployment.
        audience: the expected users.
        spreads: assumed, or estimated from releases.
    """

    config: P2BConfig
    audience: Audience
    spreads: Spreads

    @property
    def behaviour(self) -> UserBehaviour:
        """What users do, as the forecast takes it."""
        config = self.config
        rate = config.click_rate
        features = config.release.form == "features"
        # Uniform histograms with d entries have a mean squared length of 2/(d + 1), the variance of a cold score.
        bonus = 1.0 if features else math.sqrt(2.0 / (config.context.dimension + 1))
        return UserBehaviour(
            arms=config.arms if config.expected_items is None else config.expected_items,
            visits=self.audience.visits,
            before_slot=config.slot.after_interactions,
            chance=click_chance(rate) if features and rate is not None else None,
            bonus=bonus,
            returning=features,
        )

    @property
    def seen(self) -> float:
        """The share of the variance of contexts' effects that released sums contain."""
        config = self.config
        coded = config.release.form == "codes"
        return code_share(config.context.dimension, resolve_codes(config)) if coded else 1.0

    def slots(self, day: float) -> float:
        """Slots that were sent by the end of a day."""
        return sum(self.audience.reached(visit, day) for visit in self.due_visits())

    def due_visits(self) -> Iterator[int]:
        """The numbers of the visits at which a user's slots fall due, up to the user's last visit."""
        slot, visit = self.config.slot, 0
        step = self.audience.days / self.audience.visits * 86_400
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
        return Sample(sent, self.audience.visited(day), noise_variance(self.config, windows) if self.sums else 0.0)

    @property
    def sums(self) -> bool:
        """Whether noised sums leave the shuffler; else tuples do, or nothing (`withheld`)."""
        return self.config.release.mode == "slot-sums"

    @property
    def withheld(self) -> bool:
        """Whether an average crowd of rewarded tuples stays below the threshold for a year."""
        if self.sums:
            return False
        cells = self.config.arms * resolve_codes(self.config)
        rewarded = self.sample(DAYS[-1]).slots / cells * slot_share(self.spreads, self.behaviour)
        return rewarded < resolve_threshold(self.config)

    def at(self, day: float, factor: float = 1.0) -> Forecast:
        """The rewards of new users at the end of a day, with all spreads times a factor."""
        return self.of(self.sample(day), factor)

    def after(self, slots: float, windows: int) -> Sample:
        """What was released with this many slots, in this many windows of each partition."""
        config = self.config
        tree = window_tree_of(config)
        windows = windows if tree is None else min(windows, tree.horizon)
        kept = slots * config.release.sampling * remembered(config, windows).share
        return Sample(kept, slots * config.slot.after_interactions, noise_variance(config, windows))

    def of(self, sample: Sample, factor: float = 1.0) -> Forecast:
        """The rewards of new users after what was released, with all spreads times a factor."""
        config, spreads = self.config, self.spreads.times(factor)
        if config.release.form == "features":
            return forecast_features(layout_of_slots(config), spreads, self.behaviour, sample)
        variance = sample.variance / config.release.levels**2
        sample = Sample(sample.slots, sample.interactions, variance)
        return forecast_codes(config.context.dimension, resolve_codes(config), spreads, self.behaviour, sample)

    def better(self, factor: float) -> int | None:
        """The first day on which a new user is better off with a release than without a model; None for none."""
        return first_day(lambda day: _better(self.at(day, factor)))


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


def plan(config: P2BConfig, audience: Audience) -> Plan:
    """The plan of a deployment that has not run."""
    spreads = assumed_spreads(config, audience.rate)
    return plan_of(Forecaster(config, audience, spreads), _assumptions(config, audience, spreads))


def plan_of(ahead: Forecaster, assumed: tuple[str, ...], factors: tuple[float, float, float] = FACTORS) -> Plan:
    """The plan of a forecaster.

    Args:
        ahead: the forecaster.
        assumed: its assumptions, in words.
        factors: the range is all spreads times these.
    """
    config, last = ahead.config, DAYS[-1]
    ends = {factor: ahead.at(last, factor) for factor in factors}
    days = _days(ahead, factors)
    beats, verdict = _verdict(ahead, days, ends[factors[1]])
    need = holdout_users(config, ahead.spreads.rate, ends[1.0].private, ahead.audience.visits)
    return Plan(
        system=config.system,
        measure="reward a visit of a new user",
        values={
            "each user alone (cold)": ranged(lambda factor: ends[factor].cold, factors),
            "this deployment": ranged(lambda factor: ends[factor].private, factors),
            "without privacy": ranged(lambda factor: ends[factor].open, factors),
        },
        beats=beats,
        verdict=verdict,
        points=tuple(_point(ahead, day, factors) for day in DAYS),
        first_day=days,
        unit="slots",
        paid="slot",
        noise=_noise(ahead),
        lives=lives_of(
            lambda day: sum(visit <= ahead.audience.of_one(day) for visit in ahead.due_visits()),
            lambda slots: life_prices(config, slots),
        ),
        holdout=_holdout(config, need),
        sizes=_sizes(ahead),
        assumed=assumed,
        facts={
            "gain": ends[1.0].gain,
            "holdout_users": None if need is None else need.users,
            "spreads": {"items": ahead.spreads.arms, **ahead.spreads.blocks, "rest": ahead.spreads.rest},
            "rate": ahead.spreads.rate,
        },
    )


def warnings(config: P2BConfig) -> tuple[str, ...]:
    """Warnings for the check of a configuration: if its plan for a year says no, and if slots may leave too early."""
    each = config.slot.after_interactions * lifetime_slots_of(config)
    users = max(1, config.expected_slots)
    # Users who come in the first half of the year have made all their visits by its end.
    ahead = Forecaster(config, Audience(users, each, DAYS[-1] / 2), assumed_spreads(config))
    beats, verdict = _verdict(ahead, _days(ahead, FACTORS), ahead.at(DAYS[-1]))
    no = (
        ()
        if beats is not False
        else (f"with the {count_text(config.expected_slots, 'slot', ',')} expected: {verdict}",)
    )
    return (*no, *_early(config))


def _early(config: P2BConfig) -> tuple[str, ...]:
    """A warning if slots may leave before rewards can have come; the forecast does not consider that."""
    settles, window = config.slot.settle_seconds, config.feedback.attribution_window_seconds
    if settles >= window:
        return ()
    held = (
        "are left out of it (if all are, the slot is null)"
        if config.release.form == "features"
        else "are only in it if they were rewarded"
    )
    return (
        f"feedback.settle_seconds: a slot leaves {settles:g} to {2 * settles:g} s after its last visit, and a reward "
        f"may take {window:g} s (feedback.attribution_window_seconds): visits that still wait for a reward {held}; "
        f"state at least {window:g}",
    )


def _renewed(config: P2BConfig) -> tuple[str, ...]:
    every, slots = config.slot.renew_every_seconds, lifetime_slots_of(config)
    if every is None:
        return ()
    return (
        f"a user who comes back gets a new slot {every / 86_400:.3g} days after one fell due, and {slots} in their "
        f"life, which cost {price_text(life_prices(config, slots).which)} together",
    )


def _forgotten(config: P2BConfig) -> tuple[str, ...]:
    if config.half_life == "auto":
        return (
            "the model forgets as fast as released windows say that the world changes (model.half_life: auto); slots "
            "are given as if nothing changed",
        )
    if config.half_life is None:
        return ()
    windows = remembered(config, 1 << 40)
    worth = windows.share * (1 << 40) * config.partitions.shuffler
    return (
        f"with model.half_life {config.half_life:g} the model is worth at most {worth:,.3g} windows of "
        f"{config.release.window_slots:,} slots, however many were released; slots are given as they are worth",
    )


def _days(ahead: Forecaster, factors: tuple[float, float, float]) -> tuple[int | None, int | None, int | None]:
    """The first better day for the largest, the expected and the smallest effects."""
    if ahead.withheld:
        return (None, None, None)
    return (ahead.better(factors[2]), ahead.better(factors[1]), ahead.better(factors[0]))


def _better(found: Forecast) -> bool:
    return found.gain > LEAST_GAIN * found.cold


def _verdict(
    ahead: Forecaster, days: tuple[int | None, int | None, int | None], end: Forecast
) -> tuple[bool | None, str]:
    config = ahead.config
    if ahead.audience.visits < config.slot.after_interactions:
        return False, (
            f"It will not beat no learning: a slot is due after "
            f"{count_text(config.slot.after_interactions, 'visit')}, and a user "
            f"makes {ahead.audience.visits}, so nothing is ever released."
        )
    if not ahead.windows(DAYS[-1]):
        return False, (
            f"It will not beat no learning: a window closes at "
            f"{count_text(config.release.window_slots, 'slot', ',')} of a partition, "
            f"and within a year there are {ahead.slots(DAYS[-1]):,.0f}."
        )
    if ahead.withheld:
        return False, (
            "It will not beat no learning: crowds of rewarded tuples stay below the threshold of "
            f"{resolve_threshold(config)}, so they are withheld, and the model learns from unrewarded visits alone."
        )
    if days[0] is None:
        return False, "It will not beat no learning within a year, even where effects are large: the noise is too much."
    share = end.share or 0.0
    kept = f"after a year it keeps {share:.2f} of the non-private gain"
    if days[2] is None:
        return None, f"It may or may not beat no learning: that depends on how large effects are. Expected: {kept}."
    return True, f"It will beat no learning; {kept}."


def _point(ahead: Forecaster, day: int, factors: tuple[float, float, float]) -> Point:
    shares = {factor: _share(ahead, day, factor) for factor in factors}
    known = None not in shares.values()
    return Point(day, ahead.sample(day).slots, ranged(lambda factor: shares[factor] or 0.0, factors) if known else None)


def _share(ahead: Forecaster, day: int, factor: float) -> float | None:
    """The share of the non-private gain, at least 0: a model without information is as good as none."""
    if not ahead.windows(day) or ahead.withheld:
        return 0.0
    share = ahead.at(day, factor).share
    return None if share is None else min(1.0, max(0.0, share))


def _noise(ahead: Forecaster) -> tuple[str, ...]:
    config, sample = ahead.config, ahead.sample(DAYS[-1])
    if not ahead.sums:
        return (f"tuples of crowds below {resolve_threshold(config)} are withheld; the others bear no noise",)
    if not sample.slots:
        return ("nothing is released within a year",)
    deviation = math.sqrt(sample.variance)
    if config.release.form != "features":
        cells = config.arms * resolve_codes(config)
        each = sample.slots / cells
        return (
            f"each of {count_text(cells, 'cell', ',')} (code, item): off by "
            f"{deviation / config.release.levels:.3g} slots "
            f"(one deviation) of {each:,.3g}, after a year",
        )
    layout, behaviour = layout_of_slots(config), ahead.behaviour
    found = noise_of_cells(layout, behaviour.arms, sample, slot_share(ahead.spreads, behaviour))
    texts = []
    for block, budget in zip(layout.blocks, layout.budgets, strict=True):
        name = f"{block.name} ({count_text(block.cells, 'cell')})" if block.name else "an item's total"
        off = deviation / (budget * layout.levels)
        signal = ahead.spreads.blocks.get(block.name, ahead.spreads.arms)
        texts.append(
            f"{name}: off by {off:,.3g} slots of {sample.slots / behaviour.arms / block.cells:,.3g}; its effect on "
            f"log-odds by {found[block.name]:.2g}, against a spread of {signal:.2g}"
        )
    return tuple(texts)


def _holdout(config: P2BConfig, need: HoldoutNeed | None) -> str:
    share = config.lift.holdout or ASSUMED_SHARE
    if need is None:
        return "there is no gain that a hold-out could show"
    asked = "" if config.lift.holdout else f" (none is configured: a share of {share:g} is assumed)"
    return (
        f"to show the gain (power {need.power:.0%}, two-sided test at 5 %) it needs {need.users:,} users, so "
        f"{math.ceil(need.users / share):,} users in all{asked}; of each user at most "
        f"{count_text(config.lift.decisions_per_user, 'decision')} count, assumed to be fully dependent"
    )


def _sizes(ahead: Forecaster) -> Mapping[str, str]:
    config, audience = ahead.config, ahead.audience
    parts, day = config.partitions, audience.visited(365.0) / 365
    numbers = config.context.dimension * _NUMBER
    context = _CONTEXT + (numbers if config.release.form == "codes" else config.context.schema.row_bytes)
    users = audience.users / audience.days * 365
    week = 7 * day * (context + 2 * _CLICK + _BROKER)
    sums = 8 * summed_of(config).sums[0]
    ever = 365 * day * _DECISION + ahead.windows(365.0) * parts.shuffler * (2 * sums + _WINDOW)
    return {
        "partitions": f"learner {parts.learner}, shuffler {parts.shuffler}: at most so many workers share the work",
        "learner, memory": f"{_LEARNER_MB + users * _USER_KB / 1000:,.0f} MB for the {users:,.0f} users of a year, all "
        "resident, over all its workers (users.expire_after_seconds and --resident lower it)",
        "shuffler, aggregator, memory": f"{_OTHER_MB} MB each, and a window's slots",
        "learner, state on disk": f"{users * _STATE_KB / 1000:,.0f} MB for them",
        "broker, kept for days": f"{(week + 7 * ahead.slots(365.0) / 365 * _REPORT) / 1e6:,.0f} MB for each copy",
        "broker, kept for ever": f"{ever / 1e6:,.0f} MB a year for each copy, unless journals are trimmed",
    }


def _assumptions(config: P2BConfig, audience: Audience, spreads: Spreads) -> tuple[str, ...]:
    blocks = sorted({round(value, 3) for value in spreads.blocks.values()})
    given = audience.rate is not None or config.click_rate is not None
    source = "as given" if given else "a guess: --click-rate"
    what = "each feature" if config.release.form == "features" else "the whole context"
    return (
        f"effects on log-odds differ over items by {spreads.arms:g} (items), {blocks[0]:g} ({what}) and "
        f"{spreads.rest:g} (what nobody can learn); the range is from all smaller by 1.41 to all larger by it",
        f"a random item is rewarded in {spreads.rate:.2%} of visits ({source})",
        f"{count_text(audience.users, 'new user', ',')} come every "
        f"{count_text(audience.days, 'day', 'g')}, evenly, and each makes "
        f"{count_text(audience.visits, 'visit')} within as many days; nothing changes with time",
        *_renewed(config),
        *_forgotten(config),
        *_early(config),
    )
