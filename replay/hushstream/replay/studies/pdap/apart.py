"""What each vendor would earn alone: its own items for its own users, its exact clicks, the same visits and coins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hushstream.privacy.keys import seeded_key
from hushstream.replay.studies.pdap.closed_loop import PdapPlan, Visits
from hushstream.replay.studies.pdap.forms import exact_noise
from hushstream.replay.studies.pdap.play import EXACT_EPSILON, Chain
from hushstream.replay.studies.pdap.worlds.vendors import Float64, Int64, VendorWorld, names
from hushstream.systems.pdap.algorithm.aggregate import Aggregate
from hushstream.systems.pdap.algorithm.outcomes import Outcomes
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.counter.pending import Counter


def chances_apart(config: PdapConfig, world: VendorWorld, visits: Visits, plan: PdapPlan, seed: int) -> Float64:
    """Click probability of what each visitor would be shown, (n,), if vendors kept apart.

    Args:
        config: of the deployment that shares.
        world: who clicks on what.
        visits: who comes.
        plan: a vendor alone closes its windows by the same schedule, on its own visits.
        seed: of the tickets.
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
    if config.reserved.issuperset(own.tolist()):
        # It has nothing to show until it offers something.
        return np.zeros(len(events))
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
