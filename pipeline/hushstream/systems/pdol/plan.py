"""Plans sharing among holders of records, day by day; the formulas are in `hushstream.systems.pdol.advice`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hushstream.engine.configuration import LARGEST_EPSILON
from hushstream.engine.declare.plan import DAYS, Audience, Plan, Point, first_day, lives_of, ranged
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.sentence import Prices
from hushstream.systems.pdol.advice import WORST, Advice, advise
from hushstream.systems.pdol.budget import lifetime_guarantee
from hushstream.systems.pdol.configuration import PdolConfig

FACTORS = (1 / WORST, 1.0, WORST)
"""Factors of the number of records for the bounds: the largest errors of the crossing that were found."""

_LEAST_STEP = 0.01


def plan(config: PdolConfig, audience: Audience) -> Plan:
    """The plan for a deployment; see the module."""
    if config.gossip is not None or config.sharing.counter == "exact":
        return _without_noise(config, audience)

    def advice(day: float, factor: float = 1.0) -> Advice | None:
        records = audience.visited(day) / config.nodes
        return advise(config, factor * records) if records > 0 else None

    def at(day: float, factor: float) -> float:
        found = advice(day, factor)
        return 0.0 if found is None else found.gain

    end = advice(DAYS[-1])
    beats, verdict = _verdict(config, end)

    def first(factor: float) -> int | None:
        return first_day(lambda day: at(day, factor) > 0)

    days = [first(factor) for factor in reversed(FACTORS)]
    return Plan(
        system=config.system,
        measure="of what a central learner would gain over nodes alone",
        values={"this deployment": ranged(lambda factor: at(DAYS[-1], factor), FACTORS)},
        beats=beats,
        verdict=verdict,
        points=tuple(
            Point(
                day,
                audience.visited(day) / config.nodes,
                ranged(partial(at, day), FACTORS),
            )
            for day in DAYS
        ),
        first_day=(days[0], days[1], days[2]),
        unit="records a node",
        paid="record",
        noise=_noise(end),
        lives=lives_of(
            lambda day: min(config.records.records_per_user, audience.of_one(day)),
            lambda records: _prices(config, records),
        ),
        sizes=_sizes(config, audience),
        assumed=(
            "all nodes see records of one kind; if they do not, others' records help less than this says",
            f"in replays sharing began to pay up to {WORST:g} times earlier or later than computed: this is the range",
            f"{count_text(audience.users, 'person', ',')} come every "
            f"{count_text(audience.days, 'day', 'g')}, evenly over "
            f"{count_text(config.nodes, 'node', ',')}, with {count_text(audience.visits, 'record')} each, "
            f"of which {config.records.records_per_user} of a person at a node count",
        ),
        facts={} if end is None else end.as_json(),
    )


def least_epsilon(config: PdolConfig, records_per_node: float) -> float | None:
    """The least epsilon (to 1 %) with which a number of records is above the crossing; None if there is none."""

    def crosses(epsilon: float) -> bool:
        found = advise(replace(config, sharing=replace(config.sharing, epsilon=epsilon), budget=None), records_per_node)
        return found.crossing is not None and found.expected >= found.crossing

    low, high = config.sharing.epsilon, float(LARGEST_EPSILON)
    if not crosses(high):
        return None
    while high - low > _LEAST_STEP * low:
        middle = (low + high) / 2
        low, high = (low, middle) if crosses(middle) else (middle, high)
    return high


def _verdict(config: PdolConfig, end: Advice | None) -> tuple[bool | None, str]:
    if end is None:
        return False, "It will not beat isolated nodes: no record comes within a year."
    sharing = f"Sharing {end.verdict}"
    if end.beats_isolated or end.crossing is None:
        return end.beats_isolated, f"{sharing}; of a central learner's gain {end.gain:.2f} is left after a year."
    if end.expected >= end.crossing:
        return None, f"{sharing}: the records exceed the crossing by less than its error."
    least = least_epsilon(config, end.expected * config.domains / config.nodes)
    otherwise = "at no epsilon that is allowed" if least is None else f"or take an epsilon of at least {least:.3g}"
    return end.beats_isolated, f"{sharing} within a year: keep apart, {otherwise}."


def _noise(end: Advice | None) -> tuple[str, ...]:
    if end is None or end.crossing is None:
        return ()
    return (
        f"as much as is told by {count_text(end.crossing, 'record', ',.0f')} a counter; "
        f"{end.expected:,.0f} come in a year",
    )


def _prices(config: PdolConfig, records: int) -> Prices:
    return lifetime_guarantee(replace(config, records=replace(config.records, records_per_user=records))).life_prices


def _without_noise(config: PdolConfig, audience: Audience) -> Plan:
    text = (
        "Nobody knows before it runs: the paper's form has no noise that a forecast could count."
        if config.gossip is not None
        else "Exact sums have no noise to plan for; they are for replays of public datasets alone."
    )
    return Plan(
        system=config.system,
        measure="",
        values={},
        beats=None,
        verdict=text,
        unit="records",
        paid="record",
        lives=lives_of(
            lambda day: min(config.records.records_per_user, audience.of_one(day)),
            lambda records: _prices(config, records),
        ),
        sizes=_sizes(config, audience),
        assumed=(),
    )


def _sizes(config: PdolConfig, audience: Audience) -> Mapping[str, str]:
    wide, slots = config.records.dimension, sum(config.slots_of(domain) for domain in range(config.domains))
    releases = audience.visited(365.0) / max(1.0, slots / config.domains)
    per_version = config.releases_per_version
    return {
        "partitions": f"at most {config.domains} node workers share the work",
        "node, memory": f"{48 * wide / 1e6:,.3g} MB a counter, and as much on disk",
        "node, state on disk": f"{24 * audience.users / audience.days * 365 / 1e6:,.0f} MB for the persons of a year",
        "broker": f"a release has {8 * wide / 1000:,.0f} kB, a model {4 * wide / 1000:,.0f} kB: in a year "
        f"{releases * (8 + 4 / per_version) * wide / 1e6:,.0f} MB for each copy; models and predictions stay for ever",
    }
