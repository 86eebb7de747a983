"""Where the keys of a configuration stand that are not where its class has their values."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine import language

KEYS: Mapping[str, str | None] = {
    "records.dimension": language.DIMENSION,
    "records.records_per_user": language.UNITS_PER_PERSON,
    "records.label_slots": "feedback.label_slots",
    "records.remembered_events": language.REMEMBERED_EVENTS,
    "sharing.counter": language.MECHANISM,
    "sharing.epsilon": language.EPSILON,
    "sharing.delta": language.DELTA,
    "sharing.epochs": language.EPOCHS,
    "sharing.slots_per_release": language.WINDOW_UNITS,
    "sharing.horizon": language.HORIZON,
    "sharing.domains": "release.domains",
    "gossip.epsilon": language.EPSILON,
    "budget": language.LIFETIME,
    "budget.lift": None,
}
