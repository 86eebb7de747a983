"""Plays a world of vendors through P-DAP's learner, counters and aggregator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from hushstream.agents.worker.deployment import parse_as, prepare
from hushstream.engine.declare.declaration import System
from hushstream.privacy.keys import seeded_key
from hushstream.replay.catalogue.played_by import hint
from hushstream.replay.catalogue.worlds import seeded_world
from hushstream.replay.checks import run_fields
from hushstream.replay.configurations import NEVER_SECONDS, merged_values
from hushstream.replay.logged.log import INTERNAL_MARK
from hushstream.replay.play_options import PlayOptions
from hushstream.replay.progress import Progress
from hushstream.replay.report.payoff import Payoff, paired_gap
from hushstream.replay.report.summaries import paired
from hushstream.replay.runners.playing import Recording, deployed, play_parties
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.pdap.closed_loop import PdapLoop, PdapPlan, PdapPlayed, Visits
from hushstream.replay.studies.pdap.forms import exact_noise
from hushstream.replay.studies.pdap.play import EXACT_EPSILON, Chain
from hushstream.replay.studies.pdap.report import CurveRow, PdapResult, VendorRow
from hushstream.replay.studies.pdap.worlds.logged_vendors import OwnVendors
from hushstream.replay.studies.pdap.worlds.ml_vendors import FilmVendors
from hushstream.replay.studies.pdap.worlds.vendors import Float64, Int64, Vendors, VendorWorld, names
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdap.algorithm.aggregate import Aggregate
from hushstream.systems.pdap.algorithm.outcomes import Outcomes
from hushstream.systems.pdap.configuration import PdapConfig, Schedule
from hushstream.systems.pdap.counter.pending import Counter

WORLDS = (Vendors, FilmVendors, OwnVendors)
_NEVER_OUTCOMES = 1 << 40


@dataclass(frozen=True, slots=True)
class PdapOptions(PlayOptions):
    """What to run: the options of every system (`PlayOptions`), and P-DAP's own.

    Attributes:
        dataset: a world of vendors by name.
        contexts: number of contexts of all vendors together.
        first_window: contexts of the first phase.
        window_ratio: contexts at the end of a phase, as a multiple of those at the end of the phase before.
        config: values of the configuration that replace the defaults, nested as in deployment.yaml. Windows end with
            phases, unless ``release.window_units`` is given here.
    """

    dataset: str = "vendors"
    contexts: int = 5_000
    first_window: int = 500
    window_ratio: float = 1.5


def run_pdap(options: PdapOptions, progress: Progress | None = None) -> PdapResult:
    """Play a world of vendors and return the clicks of each, guarantee, counts and throughput.

    Raises:
        HushstreamError: the world, the runner or an option is unknown, the world has no vendors, the configuration is
            invalid or has named items, or an internal log would go to a Kafka cluster.
    """
    options.require_runner()
    world = _world(options)
    plan = PdapPlan(options.contexts, Schedule(options.first_window, options.window_ratio))
    visits = Visits.of(world, plan.contexts, options.seed)
    with deployed(options.folder) as folder:
        config = parse_as(PdapConfig, configured(options, world))
        if config.named_items:
            raise HushstreamError("vendors.items.named: expected false in a replay, whose world numbers its items")
        marked = f"{world.name}, {INTERNAL_MARK}" if _is_internal(world) else world.name
        system = prepare(folder, config, public_dataset=marked)
        place = options.place(folder)
        loop = PdapLoop(config, world, visits, plan, progress)
        recording = run_to_end(lambda: play_parties(system, place, loop.run))
    apart = chances_apart(config, world, visits, plan, options.seed)
    return _result(options, world, config, system, recording, visits, apart)


def _world(options: PdapOptions) -> VendorWorld:
    world = seeded_world(options.dataset, options.world, options.seed)
    if not isinstance(world, WORLDS):
        raise HushstreamError(f"dataset: expected a world of vendors, got {options.dataset!r}{hint(options.dataset)}")
    if options.bootstrap is not None and _is_internal(world):
        raise HushstreamError(
            "bootstrap: expected none for an internal log, whose rows would be in clear on "
            f"{options.bootstrap}; the embedded broker keeps them on this machine"
        )
    return cast("VendorWorld", world)


def _is_internal(world: object) -> bool:
    return isinstance(world, OwnVendors) and world.internal


def configured(options: PdapOptions, world: VendorWorld) -> dict[str, Any]:
    """The configuration that fits a world, with the values that the caller set."""
    sizes = np.bincount(world.owners).tolist()
    own = world.vendors if isinstance(world, OwnVendors) else [f"vendor-{place}" for place in range(len(sizes))]
    values: dict[str, Any] = {
        "system": "pdap",
        "deployment": "replay",
        "vendors": [{"name": name, "items": {"capacity": size}} for name, size in zip(own, sizes, strict=True)],
        "features": {"dimension": world.dimension},
        "feedback": {"attribution_window_seconds": NEVER_SECONDS, "remembered_events": max(50_000, options.contexts)},
        "release": {"window_units": _NEVER_OUTCOMES},
    }
    return merged_values(values, options.config)


def _result(
    options: PdapOptions,
    world: VendorWorld,
    config: PdapConfig,
    deployed: System,
    recording: Recording[PdapPlayed],
    visits: Visits,
    apart: Float64,
) -> PdapResult:
    played = recording.played
    return PdapResult(
        **run_fields(options, world.name, deployed, recording, len(played.chosen)),
        internal=_is_internal(world),
        placement=config.release.placement,
        vendors=_vendors(config, played, visits, apart),
        curve=_curve(options, played, apart),
        comparison=paired(played.chances, apart),
        payoff=_payoff(played.chances, apart, visits),
    )


def _payoff(shared: Float64, apart: Float64, visits: Visits) -> Payoff:
    """The click rate with sharing compared with that of vendors apart; the sample is the users."""
    return Payoff(
        what="share of visits clicked, in points of a hundred,",
        value=100 * float(shared.mean()),
        baseline="vendors that keep apart with exact clicks",
        reference=100 * float(apart.mean()),
        gap=paired_gap(100 * shared, 100 * apart, np.asarray(visits.arrivals.users, dtype=np.int64)),
        units="users",
        otherwise="keep the vendors apart, or use a larger epsilon or more visits",
        digits=1,
    )


def _vendors(config: PdapConfig, played: PdapPlayed, visits: Visits, apart: Float64) -> tuple[VendorRow, ...]:
    homes, serving = visits.arrivals.homes, config.owners[played.chosen]
    rows = []
    for number, vendor in enumerate(config.vendors):
        here = homes == number
        visitors = int(here.sum())
        rows.append(
            VendorRow(
                vendor.name,
                visitors,
                _mean(played.chances[here]),
                _mean(apart[here]),
                int((here & (serving != number)).sum()),
                int((~here & (serving == number)).sum()),
            )
        )
    return tuple(rows)


def _curve(options: PdapOptions, played: PdapPlayed, apart: Float64) -> tuple[CurveRow, ...]:
    """Mean click probability of all answers up to the end of each phase."""
    plan = PdapPlan(options.contexts, Schedule(options.first_window, options.window_ratio))
    ends = [events.stop for events in plan.phases()]
    return tuple(CurveRow(end, _mean(played.chances[:end]), _mean(apart[:end])) for end in ends)


def _mean(values: Float64) -> float:
    return float(values.mean()) if len(values) else 0.0


def chances_apart(config: PdapConfig, world: VendorWorld, visits: Visits, plan: PdapPlan, seed: int) -> Float64:
    """Click probability of the item that each visitor would get if vendors kept apart, (n,).

    Args:
        config: configuration of the deployment that shares.
        world: the world with the click probabilities.
        visits: the users who come.
        plan: a vendor alone closes its windows by the same schedule, on its own visits.
        seed: seed of the tickets.
    """
    exact = replace(
        config.release,
        epsilon=EXACT_EPSILON,
        level_growth=0.0,
        placement="serving",
        first_window=plan.schedule.first,
        window_ratio=plan.schedule.ratio,
    )
    alone = replace(config, release=exact)
    found = np.zeros(plan.contexts)
    for vendor in range(len(config.vendors)):
        here = np.flatnonzero(visits.arrivals.homes == vendor)
        found[here] = _one(alone, vendor, world, visits, here, seed)
    return found


def _one(config: PdapConfig, vendor: int, world: VendorWorld, visits: Visits, events: Int64, seed: int) -> Float64:
    key = seeded_key(seed, f"alone-{vendor}")
    own = np.flatnonzero(config.owners == vendor)
    chain = Chain(config, [Counter(config, exact_noise)], Aggregate(config, own), key)
    chances = np.zeros(len(events))
    done = 0
    while done < len(events):
        some = events[done : done + chain.capacity_left]
        arrivals = visits.arrivals.take(some)
        users = [b"%d" % user for user in arrivals.users]
        shown = chain.serving.choose(arrivals.contexts, users, [b"%d" % event for event in some])
        mean = world.means(arrivals, shown.arms, float(some[0]) / len(visits.coins))
        clicks = (visits.coins[some] < mean).astype(np.int64)
        named = names(done, len(some))
        chain.take(Outcomes(shown.cells, shown.arrivals, shown.arms, clicks, named), arrivals.homes)
        chances[done : done + len(some)] = mean
        done += len(some)
    return chances
