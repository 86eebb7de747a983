"""A plan for a running deployment: with spreads from its releases, and with the effect of changes to it.

It reads released windows alone: their sums, their numbers of slots, and when they were released. A deployment's pace is
the number of slots a day between its first and its newest window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from hushstream.engine.declare.plan import Audience, Plan, ReleasedAt
from hushstream.engine.records import PART
from hushstream.engine.release_parts import BadPart, PartSets, record_of
from hushstream.privacy.amounts import count_text
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.aggregator import PrivateTotals
from hushstream.systems.p2b.machines.feature_totals import FeatureTotals, NamedTotals, sums_of
from hushstream.systems.p2b.reports.planning.estimated import EstimatedSpreads, estimated_spreads
from hushstream.systems.p2b.reports.planning.forecast import Forecast
from hushstream.systems.p2b.reports.planning.plan import ASSUMED_REST, LEAST_GAIN, Forecaster, assumed_spreads, plan_of
from hushstream.systems.p2b.server.effects import RawEffects
from hushstream.systems.p2b.server.elementary import halving
from hushstream.systems.p2b.server.fading import Int64
from hushstream.systems.p2b.server.half_lives import HALF_LIVES, SETTLING_WINDOWS, HalfLives, add_crowd
from hushstream.systems.p2b.server.totals import CrowdTotals

_DAY_MS = 86_400_000
_LEAST_DAYS = 1.0 / 24
"""The least time between the first and the newest window from which a pace is computed."""
_WEEKS = (4, 12)
_STEADY = 10_000
"""A day so late that the number of slots a day is constant."""
_LEAST_WINDOWS = SETTLING_WINDOWS + 2
"""The least number of windows in which a drift can be noticed."""
_LARGEST_EPSILON = 20.0


@dataclass(frozen=True, slots=True)
class Windows:
    """What was released so far.

    Attributes:
        count: number of windows of all partitions.
        slots: number of slots in them.
        days: number of days between the first and the newest window.
        later_slots: number of slots in all windows but the first.
        effects: effects of items and features, or codes, in the sums of all windows.
        first: the share of reports with a reward in the first window.
        each: every window by itself, if features are declared, windows have fresh noise, and items have no names; else
            empty.
    """

    count: int
    slots: int
    days: float
    later_slots: int
    effects: RawEffects
    first: float
    each: tuple[Window, ...]

    @property
    def slots_a_day(self) -> float | None:
        """The pace; None if all windows came within an hour, as in a replay that plays days in seconds."""
        return self.later_slots / self.days if self.days >= _LEAST_DAYS and self.later_slots else None


def released_plan(system: P2BSystem, records: Iterable[ReleasedAt], asked: Audience | None, rate: float | None) -> Plan:
    """The plan for a deployment that has released windows.

    Args:
        system: the deployment.
        records: the records of the topics of its releases, with their log times.
        asked: the expected audience; None for as many users as have come so far.
        rate: share of visits that reward an item drawn at random; None to compute it from the first window.

    Raises:
        HushstreamError: no window was released yet; or all were released within an hour, and no audience is given.
    """
    config, windows = system.config, read_windows(system, records)
    audience = _as_before(config, windows, rate) if asked is None else asked
    known = rate if rate is not None else config.click_rate
    bare = Forecaster(config, audience, assumed_spreads(config, known))
    found = estimated_spreads(windows.effects, windows.first, bare.behaviour, ASSUMED_REST, rate, bare.seen)
    ahead = Forecaster(config, audience, found.spreads)
    plan = plan_of(ahead, _assumed(windows, audience, found), found.factors)
    pace = windows.slots_a_day if asked is None else ahead.slots(_STEADY + 1) - ahead.slots(_STEADY)
    levers = dict(_levers(ahead, windows, pace or 0.0))
    enough = len(windows.each) >= _LEAST_WINDOWS
    half_life = measured_half_life(system.linear.layout, windows.each) if enough else None
    facts = {
        **(plan.facts or {}),
        "half_life_measured": half_life,
        "released": {"windows": windows.count, "slots": windows.slots, "slots_a_day": windows.slots_a_day},
        "factors": list(found.factors),
        "more": {name: {"share": one.share, "reward": one.private} for name, one in levers.items()},
    }
    return replace(plan, more=(*_gains_in_words(levers), *_drift(config, windows, half_life)), facts=facts)


def read_windows(system: P2BSystem, records: Iterable[ReleasedAt]) -> Windows:
    """The windows among the records of a deployment's releases.

    Raises:
        HushstreamError: there is no window.
    """
    totals, first = _totals(system), _totals(system)
    apart = isinstance(totals, FeatureTotals) and system.window_tree is None
    each: list[Window] = []
    times: list[int] = []
    slots: list[int] = []
    seen: set[bytes] = set()
    for time_ms, fields in _windows(system, records):
        if fields["window_id"] in seen or not totals.add(fields):
            continue
        if not seen:
            first.add(fields)
        seen.add(fields["window_id"])
        if apart:
            each.append(_window(fields, system.form.shape))
        times.append(time_ms)
        slots.append(fields["slots"])
    if not seen:
        raise HushstreamError(
            "plan: expected a window that was released, got none: leave out --deployment for a plan by assumptions"
        )
    days = (max(times) - min(times)) / _DAY_MS
    found, share = totals.effects(), first.effects().share
    return Windows(len(slots), sum(slots), days, sum(slots[1:]), found, share, tuple(each))


def _totals(system: P2BSystem) -> FeatureTotals | NamedTotals | PrivateTotals:
    """Empty totals for the sums that a deployment releases."""
    if system.config.release.form == "codes":
        return PrivateTotals(system)
    return NamedTotals(system) if system.config.named_items else FeatureTotals(system)


def _window(fields: Mapping[str, Any], shape: tuple[int, int]) -> Window:
    return Window(*sums_of(fields, shape), fields["variance"], fields["slots"])


def _drift(config: P2BConfig, windows: Windows, half_life: float | None) -> Iterator[str]:
    """What released sums show of a drift, and which setting follows from it, in words."""
    if len(windows.each) < _LEAST_WINDOWS:
        return
    if half_life is None:
        yield "no drift is seen: past windows predict the next one best if none is forgotten"
        return
    if config.half_life == "auto":
        yield (
            f"the world changes: past windows predict the next one best with a half-life of {half_life:g}, and the "
            f"model follows (model.half_life: auto)"
        )
        return
    each = half_life / config.partitions.shuffler
    set_to = "" if config.half_life is None else f" (it is {config.half_life:g})"
    yield (
        f"the world changes: past windows predict the next one best with a half-life of {half_life:g}; set "
        f"model.half_life: {each:g} in the next deployment{set_to}, or auto"
    )


def _windows(system: P2BSystem, records: Iterable[ReleasedAt]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The sums of each window, with their log time; a window in parts follows its last part."""
    parts = PartSets(2 * system.config.partitions.shuffler)
    read = ((time_ms, *record) for time_ms, value in records for record in codec.readable((value,)))
    for time_ms, name, fields in read:
        if name == system.form.crowd_record:
            yield time_ms, fields
        elif name == PART:
            try:
                taken = parts.take(fields)
                if taken.content is not None:
                    yield time_ms, record_of(taken.content, system.form.crowd_record)
            except BadPart:
                continue


def _as_before(config: P2BConfig, windows: Windows, rate: float | None) -> Audience:
    """An audience at the pace so far: each day's users send their slots with their last visit, within a day."""
    pace = windows.slots_a_day
    if pace is None:
        raise HushstreamError(
            f"plan: expected windows of at least an hour, to know how many people come, got "
            f"{count_text(windows.count, 'window')} of less; say --users and --visits-per-user"
        )
    return Audience(max(1, round(pace)), config.slot.after_interactions, 1.0, rate)


def _levers(ahead: Forecaster, windows: Windows, slots_a_day: float) -> Iterator[tuple[str, Forecast]]:
    """The forecast now, and after each possible change by itself: more epsilon, fewer items, more weeks."""
    config, slots = ahead.config, float(windows.slots)
    yield "now", _after(ahead, windows, slots)
    epsilon = config.release.slot_epsilon
    if 2 * epsilon <= _LARGEST_EPSILON and config.release.epsilon is not None:
        dear = replace(config, release=replace(config.release, epsilon=2 * epsilon))
        yield f"epsilon {2 * epsilon:g} in place of {epsilon:g}", _after(replace(ahead, config=dear), windows, slots)
    items = ahead.behaviour.arms
    if items >= 4:
        expected = None if config.expected_items is None else items // 2
        fewer = replace(config, arms=items // 2, expected_items=expected)
        yield f"{items // 2} items in place of {items}", _after(replace(ahead, config=fewer), windows, slots)
    for weeks in _WEEKS:
        yield f"{weeks} weeks more", _after(ahead, windows, slots + 7 * weeks * slots_a_day)


def _after(ahead: Forecaster, windows: Windows, slots: float) -> Forecast:
    """The rewards of new users after this many slots, in windows as large as those that were released."""
    each = max(1, round(windows.count * slots / windows.slots / ahead.config.partitions.shuffler))
    return ahead.of(ahead.after(slots, each))


def _gains_in_words(levers: Mapping[str, Forecast]) -> Iterator[str]:
    now = levers["now"]
    for name, one in levers.items():
        share = "nothing to gain" if one.share is None else f"{max(0.0, one.share):.2f} of the non-private gain"
        against = "" if one is now else f" ({one.private - now.private:+.4f})"
        yield f"{name}: {share}; a visit of a new user earns {one.private:.4f}{against}, alone {one.cold:.4f}"
    last = f"{_WEEKS[-1]} weeks more"
    more = levers[last].private - now.private
    if now.gain <= LEAST_GAIN * now.cold and levers[last].gain <= LEAST_GAIN * now.cold:
        yield f"{last} do not make it better than no learning: stop, or make one of the changes above"
    elif more <= LEAST_GAIN * now.cold:
        yield f"{last} add next to nothing: what is released is enough, unless the world changes"
    else:
        yield f"{last} still pay: continue"


def _assumed(windows: Windows, audience: Audience, found: EstimatedSpreads) -> tuple[str, ...]:
    blocks = ", ".join(f"{name} {spread:.2f}" for name, spread in found.spreads.blocks.items())
    low, _, high = found.factors
    return (
        f"from {count_text(windows.count, 'window')} of {count_text(windows.slots, 'slot', ',')}: effects on log-odds "
        f"differ over items by {found.spreads.arms:.2f} (items), {blocks}; the range is all of them times {low:.2f} to "
        f"{high:.2f} (95 %)",
        f"a random item is rewarded in {found.spreads.rate:.2%} of visits; effects that nobody can learn differ by "
        f"{found.spreads.rest:g} (assumed)",
        f"{count_text(audience.users, 'new user', ',')} come every {count_text(audience.days, 'day', 'g')}, evenly, "
        f"and each makes {count_text(audience.visits, 'visit')} within as many days; nothing changes with time",
    )


class Window(NamedTuple):
    """The sums of one window, the variance of the noise in each sum, and its number of slots."""

    ones: Int64
    zeros: Int64
    variance: float
    slots: int


def measured_half_life(layout: FeatureLayout, windows: Sequence[Window]) -> float | None:
    """The half-life, in these windows, with which past windows predict the next one best; None for no forgetting.

    Args:
        layout: the layout of the sums.
        windows: windows with fresh noise, the oldest first.
    """
    fades = (1.0, *map(halving, HALF_LIVES))
    kept = HalfLives(partial(CrowdTotals, layout.arms, layout.cells), fades)
    for ones, zeros, variance, slots in windows:
        add_crowd(kept, layout, ones, zeros, variance, slots)
    return (None, *HALF_LIVES)[kept.place]
