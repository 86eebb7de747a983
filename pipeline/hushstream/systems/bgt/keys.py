"""Where the keys of a configuration stand that are not where its class has their values."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine import language

KEYS: Mapping[str, str | None] = {
    "items": language.ITEMS,
    "features": language.DIMENSION,
    "release.noise": language.MECHANISM,
    "release.epsilon": language.EPSILON,
    "release.delta": language.DELTA,
    "release.epochs": language.EPOCHS,
    "partitions.learner": "partitions.rater",
    "partitions.shuffler": "partitions.collector",
    "budget": language.LIFETIME,
    "budget.lift": None,
}
