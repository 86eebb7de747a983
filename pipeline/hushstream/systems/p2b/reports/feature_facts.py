"""What follows from a configuration of declared features, in numbers and in words: for whoever decides on it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hushstream.engine.declare.declaration import Fact
from hushstream.privacy.amounts import count_text
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.deployment import reuse_after_ms
from hushstream.systems.p2b.form import FeaturesForm
from hushstream.systems.p2b.promise import expected_windows, noise_variance

_MOST_NOISE = 0.5
"""Of an item's slots: with more noise than that its total says little."""


def facts_of(config: P2BConfig) -> Sequence[Fact]:
    """Which interaction a slot holds, and how exact an item's total is."""
    form = FeaturesForm(config)
    layout = form.layout
    items = config.arms if config.expected_items is None else config.expected_items
    slots = config.expected_slots * config.slot.lifetime_slots / items
    windows = expected_windows(config)
    noise = math.sqrt(noise_variance(config, windows)) / (layout.budgets[0] * layout.levels)
    advice = "" if noise <= _MOST_NOISE * slots else "; that is too much: use fewer items or more slots"
    return (
        Fact("click_chance", -1.0 if form.chance is None else form.chance, _chosen(config, form.chance)),
        Fact(
            "noise_of_an_item",
            noise,
            f"{layout.cells} cells an item, {form.content_bytes} bytes a slot. Of some {slots:.4g} slots an item, its "
            f"total is off by {noise:.3g} (one deviation) at the end of {count_text(windows, 'window')}{advice}.",
        ),
        *(_items(config) if config.named_items else ()),
    )


def _items(config: P2BConfig) -> Iterator[Fact]:
    hours = reuse_after_ms(config) / 3_600_000
    yield Fact(
        "noised_rows",
        config.arms,
        f"Noise is on all {config.arms} rows that the catalogue has room for (`items.capacity`), whether an item is in "
        f"them or not: adding and retiring items spends nothing, and changes no figure here.",
    )
    yield Fact(
        "row_reuse_hours",
        hours,
        f"A retired item's row may have another one {hours:.3g} hours of log time later, when nothing of it can be on "
        f"its way any more.",
    )


def _chosen(config: P2BConfig, chance: float | None) -> str:
    each = config.slot.after_interactions
    ended = "An interaction counts when its reward window has ended; where none has, the slot is empty."
    if chance is None:
        return f"A slot holds one of {each} interactions, drawn uniformly. {ended}"
    return (
        f"A slot holds, with chance {chance:g}, the first of {each} interactions that was rewarded, else one drawn "
        f"uniformly of those that were not. {ended}"
    )
