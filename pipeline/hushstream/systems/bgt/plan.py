"""The plan of a deployment on ratings, day by day; the formulas are in `hushstream.systems.bgt.price.advice`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hushstream.engine.declare.plan import DAYS, Audience, Plan, Point, first_day, lives_of, ranged
from hushstream.privacy.amounts import count_text
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.price.advice import ITEM_SPREAD, LEAST_GAIN, Advice, advise, sizes
from hushstream.systems.bgt.price.budget import lifetime_guarantee
from hushstream.systems.bgt.slots import slot_bytes

FACTORS = (math.sqrt(0.5), 1.0, math.sqrt(2.0))
"""The plan is computed for the assumed spread of item offsets times each of these: low, expected and high."""


def plan(config: BgtConfig, audience: Audience) -> Plan:
    """The plan for a number of users."""
    exact = replace(config, release=replace(config.release, noise="exact"), budget=None)

    def users(day: float) -> int:
        return min(1 << 22, int(audience.users / audience.days * day))

    def advice(of: BgtConfig, day: float, factor: float) -> Advice:
        return advise(of, max(1, users(day)), audience.visits, factor * ITEM_SPREAD)

    def share(day: float, factor: float) -> float:
        whole = advice(exact, day, factor).gain
        return min(1.0, max(0.0, advice(config, day, factor).gain / whole)) if whole > 0 and users(day) else 0.0

    last = DAYS[-1]
    end = advice(config, last, 1.0)

    def first(factor: float) -> int | None:
        return first_day(lambda day: users(day) > 0 and advice(config, day, factor).pays)

    days = [first(factor) for factor in reversed(FACTORS)]
    beats, verdict = _verdict(days)
    return Plan(
        system=config.system,
        measure="RMSE of predictions on a scale from 0 to 1",
        values={
            "each device alone": ranged(lambda factor: advice(config, last, factor).local, FACTORS),
            "this deployment": ranged(lambda factor: advice(config, last, factor).shared, FACTORS),
            "without privacy": ranged(lambda factor: advice(exact, last, factor).shared, FACTORS),
        },
        beats=beats,
        verdict=verdict,
        points=tuple(Point(day, users(day), ranged(partial(share, day), FACTORS)) for day in DAYS),
        first_day=(days[0], days[1], days[2]),
        unit="users",
        paid="set of three slots",
        noise=(end.factors_text,),
        lives=lives_of(lambda day: min(1, audience.of_one(day)), lambda _: lifetime_guarantee(config).life_prices),
        sizes=_sizes(config),
        assumed=(
            f"item offsets differ by {ITEM_SPREAD:g}, as rated, and popularity falls as 1/(rank + 10), as in FilmTrust "
            "and MovieLens; the range is from 1.41 times less to 1.41 times more",
            f"{count_text(audience.users, 'user', ',')} come every "
            f"{count_text(audience.days, 'day', 'g')}, evenly, with {count_text(audience.visits, 'rating')} each; "
            "their rounds end on the day that is asked about (an operator ends them)",
        ),
        facts=end.as_json(),
        notes=tuple(sizes(config, audience.visits).as_text().splitlines()),
    )


def _verdict(days: list[int | None]) -> tuple[bool | None, str]:
    if days[0] is None:
        return False, (
            f"It will not beat no learning (each device alone) within a year: RMSE falls by less than {LEAST_GAIN:g}."
        )
    if days[2] is None:
        return None, "It may or may not beat each device alone: that depends on how far items differ."
    return True, "It will beat no learning (each device alone)."


def _sizes(config: BgtConfig) -> Mapping[str, str]:
    return {
        "partitions": f"learner {config.partitions.learner}: at most so many workers share the work; one collector",
        "a slot": f"{slot_bytes(config):,} bytes, of each user in each of three rounds",
        "memory": "not measured for this system (`hushstream bench` and `hushstream sizes` measure others)",
    }
