"""Where the keys of a configuration stand that are not where its class has their values."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine import language

KEYS: Mapping[str, str | None] = {
    "arms": language.ITEMS,
    "context": "features",
    "context.declared": "features",
    "expected_items": "items.expected",
    "click_rate": "feedback.click_rate",
    "named_items": language.NAMED_ITEMS,
    "item_features": "items.features",
    "items_from_requests": "items.from_requests",
    "half_life": f"{language.MODEL}.half_life",
    "model_valid_seconds": f"{language.MODEL}.valid_seconds",
    "release.mode": language.MECHANISM,
    "release.epsilon": language.EPSILON,
    "release.target_delta": language.DELTA,
    "release.levels": language.REWARD_LEVELS,
    "release.window_slots": language.WINDOW_UNITS,
    "release.windows": language.HORIZON,
    "slot.lifetime_slots": language.UNITS_PER_PERSON,
    "slot.renew_every_seconds": "privacy.renew_every_seconds",
    "slot.settle_seconds": language.SETTLE_SECONDS,
    "lift": "holdout",
    "lift.holdout": "holdout.share",
    "budget": language.LIFETIME,
    "budget.lift": f"{language.LIFETIME}.holdout",
}
