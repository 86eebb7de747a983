"""What was promised beside what is released: the gauges by which a deployment's forecast is held against it.

*Promised* is what `plan` says of the configuration after as many slots as have been released. *Found* is the share of
the gain under the spreads of effects that the released sums are likeliest under (`planning.estimated`, at the rate that
the plan took), and the share of released reports that hold a reward. Whoever filled a window started from the model of
those before it, so what is promised of all of them is the mean over windows, or over `_PLACES` of them.

All of it follows from the configuration and from released sums: its class is *released*, and it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from hushstream.engine.declare.plan import Audience
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.machines.aggregator import AggregatorMachine, PrivateTotals, RawTotals
from hushstream.systems.p2b.reports.planning.estimated import estimated_spreads
from hushstream.systems.p2b.reports.planning.forecast import Forecast, held_share
from hushstream.systems.p2b.reports.planning.plan import ASSUMED_REST, FACTORS, Forecaster, assumed_spreads
from hushstream.systems.p2b.server.effects import RawEffects, effects_of_codes, raw_effects

_PLACES = 32
BOUNDS = ("low", "expected", "high")


def aggregator_outlook(machine: AggregatorMachine) -> tuple[int, Callable[[], Mapping[str, float]]] | None:
    """See `Role.outlook`: of noised sums, once there is a version made of them."""
    totals, config = machine.totals, machine.system.config
    if isinstance(totals, RawTotals) or config.release.mode != "slot-sums" or not totals.slots:
        return None
    slots, windows = totals.slots, machine.version
    if isinstance(totals, PrivateTotals):
        raw = partial(effects_of_codes, *totals.released(), config.release.levels)
    else:
        layout, worth = totals.released()
        if not layout.arms:
            return None
        raw = partial(raw_effects, layout, *worth)
    return windows, partial(_outlook, config, slots, windows, raw)


def _outlook(config: P2BConfig, slots: int, windows: int, raw: Callable[[], RawEffects]) -> Mapping[str, float]:
    """What was promised, and the share of the gain under the likeliest spreads with its range."""
    effects, ahead = raw(), _forecaster(config)
    found = estimated_spreads(effects, effects.share, ahead.habits, ASSUMED_REST, ahead.spreads.rate, ahead.seen)
    likeliest = replace(ahead, spreads=found.spreads)
    return {
        **_promised(ahead, slots, windows),
        "reward_found": min(1.0, max(0.0, effects.share)),
        **_gains("found", likeliest, slots, windows, found.factors),
    }


def _promised(ahead: Forecaster, slots: int, windows: int) -> Mapping[str, float]:
    """What a plan says after so many slots: of the gain, and of the share of reports that hold a reward."""
    before = np.unique(np.linspace(0, windows - 1, min(windows, _PLACES)).astype(int)).tolist()
    started = [_after(ahead, slots * one / windows, one) for one in before]
    return {
        **_gains("promised", ahead, slots, windows, FACTORS),
        "reward_alone": held_share(started[0].cold, ahead.habits),
        "reward_promised": float(np.mean([held_share(one.private, ahead.habits) for one in started])),
    }


def _forecaster(config: P2BConfig) -> Forecaster:
    """As a plan has it whose users are those that the configuration expects."""
    return Forecaster(config, Audience(max(1, config.expected_slots), config.slot.after_interactions),
                      assumed_spreads(config))  # fmt: skip


def _after(ahead: Forecaster, slots: float, windows: int, factor: float = 1.0) -> Forecast:
    each = max(1, round(windows / ahead.config.partitions.shuffler))
    return ahead.of(ahead.after(slots, each), factor)


def _gains(
    of: str, ahead: Forecaster, slots: int, windows: int, factors: tuple[float, float, float]
) -> dict[str, float]:
    """The share of the non-private gain; 0 where there is none."""
    shares = (_after(ahead, slots, windows, factor).share for factor in factors)
    return {f"gain_{of}_{bound}": min(1.0, max(0.0, share or 0.0)) for bound, share in zip(BOUNDS, shares, strict=True)}
