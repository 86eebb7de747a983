"""Gauges that compare the forecast of a deployment with its releases.

*Promised* is the forecast of `plan` for the configuration, after as many slots as have been released. *Found* is the
share of the gain under the most likely spreads of effects, given the released sums (`planning.estimated`, at the rate
that the plan assumed), and the share of released reports with a reward. The users in a window started from the model
of the windows before. So the promised share of rewards is the mean over windows, or over `_PLACES` of them.

Everything follows from the configuration and from released sums: its class is *released*, and it costs nothing.
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
    """See `Role.outlook`: the gauges, as soon as there is a version made from noised sums."""
    totals, config = machine.totals, machine.system.config
    if isinstance(totals, RawTotals) or config.release.mode != "slot-sums" or not totals.slots:
        return None
    slots, windows = totals.slots, machine.version
    if isinstance(totals, PrivateTotals):
        raw = partial(effects_of_codes, *totals.released(), config.release.levels)
    else:
        layout, sums = totals.released()
        if not layout.arms:
            return None
        raw = partial(raw_effects, layout, *sums)
    return windows, partial(_outlook, config, slots, windows, raw)


def _outlook(config: P2BConfig, slots: int, windows: int, raw: Callable[[], RawEffects]) -> Mapping[str, float]:
    """The gauges: what was promised, and the share of the gain under the most likely spreads, with its range."""
    effects, ahead = raw(), _forecaster(config)
    found = estimated_spreads(effects, effects.share, ahead.behaviour, ASSUMED_REST, ahead.spreads.rate, ahead.seen)
    likeliest = replace(ahead, spreads=found.spreads)
    return {
        **_promised(ahead, slots, windows),
        "reward_found": min(1.0, max(0.0, effects.share)),
        **_gains("found", likeliest, slots, windows, found.factors),
    }


def _promised(ahead: Forecaster, slots: int, windows: int) -> Mapping[str, float]:
    """The forecast of a plan after this many slots: the share of the gain, and the share of reports with a reward."""
    before = np.unique(np.linspace(0, windows - 1, min(windows, _PLACES)).astype(int)).tolist()
    started = [_after(ahead, slots * one / windows, one) for one in before]
    return {
        **_gains("promised", ahead, slots, windows, FACTORS),
        "reward_alone": held_share(started[0].cold, ahead.behaviour),
        "reward_promised": float(np.mean([held_share(one.private, ahead.behaviour) for one in started])),
    }


def _forecaster(config: P2BConfig) -> Forecaster:
    """The forecaster of a plan for the number of users that the configuration expects."""
    return Forecaster(config, Audience(max(1, config.expected_slots), config.slot.after_interactions),
                      assumed_spreads(config))  # fmt: skip


def _after(ahead: Forecaster, slots: float, windows: int, factor: float = 1.0) -> Forecast:
    each = max(1, round(windows / ahead.config.partitions.shuffler))
    return ahead.of(ahead.after(slots, each), factor)


def _gains(
    of: str, ahead: Forecaster, slots: int, windows: int, factors: tuple[float, float, float]
) -> dict[str, float]:
    """The share of the non-private gain, for each factor of the spreads; 0 if there is no such gain."""
    shares = (_after(ahead, slots, windows, factor).share for factor in factors)
    return {f"gain_{of}_{bound}": min(1.0, max(0.0, share or 0.0)) for bound, share in zip(BOUNDS, shares, strict=True)}
