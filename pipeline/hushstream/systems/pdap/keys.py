"""Where the keys of a configuration stand that are not where its class has their values."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine import language

KEYS: Mapping[str, str | None] = {
    "vendors.*.arms": f"vendors.*.{language.ITEMS}",
    "vendors.*.reserved": "vendors.*.items.reserved",
    "dimension": language.DIMENSION,
    "release.epsilon": language.EPSILON,
    "release.events_per_person": language.UNITS_PER_PERSON,
    "release.reward_levels": language.REWARD_LEVELS,
    "release.first_window": language.WINDOW_UNITS,
    "release.seconds": language.WINDOW_SECONDS,
    "release.horizon": "release.horizon_units",
    "estimate": language.MODEL,
    "partitions.shuffler": "partitions.counter",
    "budget": language.LIFETIME,
    "budget.lift": None,
}
