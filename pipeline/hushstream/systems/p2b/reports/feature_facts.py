"""Facts that follow from a configuration of declared features, in numbers and words, for whoever decides on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hushstream.engine.declare.declaration import Fact
from hushstream.privacy.amounts import count_text
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.guarantee.deployment import reuse_after_ms
from hushstream.systems.p2b.guarantee.form import FeaturesForm
from hushstream.systems.p2b.guarantee.promise import expected_windows, layout_of_slots, noise_variance
from hushstream.systems.p2b.server.forgetting import remembered
from hushstream.systems.p2b.server.half_lives import HALF_LIVES

_MOST_SLOTS = 10**12
"""The largest value of `expected_slots`."""

_MOST_NOISE = 0.5
"""Share of an item's slots: if the noise is larger, the item's total says little."""


def facts_of(config: P2BConfig) -> Sequence[Fact]:
    """The facts: which interaction a slot holds, how exact an item's total is, and how the model forgets."""
    form = FeaturesForm(config)
    layout = form.layout
    items = config.arms if config.expected_items is None else config.expected_items
    windows = expected_windows(config)
    slots = _remembered_slots(config) / items
    noise = _noise_of_an_item(config)
    advice = "" if _learns(config) else f"; that is too much: {_what_would_do(config, items)}"
    return (
        Fact("click_chance", -1.0 if form.chance is None else form.chance, _chosen(config, form.chance)),
        Fact(
            "noise_of_an_item",
            noise,
            f"{layout.cells} cells an item, {form.content_bytes} bytes a slot. After {count_text(windows, 'window')} "
            f"an item has some {slots:.4g} slots, and the standard deviation of the noise in this total is "
            f"{noise:.3g}{advice}.",
        ),
        *_forgetting(config),
        *(_items(config) if config.named_items else ()),
        *(_in_parts(form.parts, config.arms) if form.parts > 1 else ()),
    )


def _noise_of_an_item(config: P2BConfig) -> float:
    """The standard deviation of the noise in an item's total after all windows, in slots."""
    layout = layout_of_slots(config)
    return math.sqrt(noise_variance(config, expected_windows(config))) / (layout.budgets[0] * layout.levels)


def _learns(config: P2BConfig) -> bool:
    """Whether the noise is small enough that an item's total says something."""
    items = config.arms if config.expected_items is None else config.expected_items
    return _noise_of_an_item(config) <= _MOST_NOISE * _remembered_slots(config) / items


def _remembered_slots(config: P2BConfig) -> float:
    """The effective number of slots of the model after all windows."""
    share = remembered(config, expected_windows(config)).share
    return config.expected_slots * config.slot.lifetime_slots * share


def _what_would_do(config: P2BConfig, items: int) -> str:
    """The advice: for how many items the expected slots are enough, and how many slots these items need."""
    fit = _last(lambda count: _learns(replace(config, expected_items=count)), 1, items)
    enough = (
        f"the slots expected are enough for {fit} items" if fit else "the slots expected are not enough for one item"
    )
    most = config.expected_slots
    while most < _MOST_SLOTS and not _learns(replace(config, expected_slots=most)):
        most = min(2 * most, _MOST_SLOTS)
    if not _learns(replace(config, expected_slots=most)):
        return f"{enough}, and no number of slots is for {items}: state a larger privacy.epsilon"
    # The number before the last doubling is not enough, so the least one lies above it.
    slots = 1 + _last(lambda count: not _learns(replace(config, expected_slots=count)), most // 2, most)
    return f"{enough}, and {items} items need `expected_slots` of some {_rounded_up(slots)}"


def _last(holds: Callable[[int], bool], least: int, most: int) -> int:
    """The last whole number from ``least`` to ``most`` up to which a condition holds; ``least`` - 1 for none."""
    low, high = least - 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _rounded_up(count: int) -> int:
    """Round up to two digits, because the number of slots is only a guess."""
    step = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // step) * step


def _in_parts(parts: int, arms: int) -> Iterator[Fact]:
    yield Fact(
        "release_parts",
        parts,
        f"Sums and models of {arms} items are larger than a record: each leaves in {parts} parts under one journal "
        f"record and one debit, and counts when all parts are there.",
    )


def _forgetting(config: P2BConfig) -> Iterator[Fact]:
    if config.half_life == "auto":
        yield Fact(
            "half_lives",
            len(HALF_LIVES),
            "The model forgets with the half-life that predicted the released windows so far best, or not at all "
            "(`model.half_life: auto`). It costs nothing and refunds nothing: it reads what was released, and every "
            "price here is as without it.",
        )
        return
    if config.half_life is None:
        return
    ever = 1 << 40
    worth = remembered(config, ever).share * ever * config.partitions.shuffler
    yield Fact(
        "half_life",
        config.half_life,
        f"The model halves a window's weight with every {config.half_life:g} later windows of a partition "
        f"(`model.half_life`), so it is worth at most {worth:.3g} windows. It costs nothing and refunds nothing: "
        "released sums are weighed, what was released stays released, and every price here is as without it.",
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
