"""Where the keys of a configuration stand that are not where its class has their values."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine import language

KEYS: Mapping[str, str | None] = {
    "arms": language.ITEMS,
    "named_items": language.NAMED_ITEMS,
    "settle_seconds": language.SETTLE_SECONDS,
    "release.epsilon": language.EPSILON,
    "release.delta": language.DELTA,
    "release.rewards_per_user": language.UNITS_PER_PERSON,
    "release.epochs": language.EPOCHS,
    "release.reward_levels": language.REWARD_LEVELS,
    "release.rows": language.WINDOW_UNITS,
    "release.seconds": language.WINDOW_SECONDS,
    "partitions.shuffler": "partitions.counter",
    "budget": language.LIFETIME,
    "budget.lift": None,
}
