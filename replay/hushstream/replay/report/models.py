"""A released model as a page: its preferences by group, their certainty, and the effect of the noise.

It is made from the plain values that `hushstream model show --json` prints, for every system that has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.sentence import percent
from hushstream.replay.report.frame import Cell, Page, Pictures, Section, Table, Tile, html
from hushstream.replay.report.sheet import AMBER, BLUE, GREEN, GREY, Drawing, Sheet

_KIND = "Released model"
_MOST = 24
"""Most rows of a picture; with more, their names are too small to read."""

_SURE = 0.95
_DEVIATIONS = 1.96
_UNMARKED = "REPRODUCIBLE, NOT PRIVATE"


class _Effect(NamedTuple):
    name: str
    effect: float
    half: float


def model_page(found: Mapping[str, Any], deployment: str) -> str:
    """The page; equal models give equal bytes.

    Args:
        found: a version of a model, as `hushstream model show --json` prints it.
        deployment: name of the deployment.
    """
    slots = count_text(found["observations"], "slot", ",.0f")
    return html(
        Page(
            kind=_KIND,
            title=deployment,
            marks=() if found["private_as_stated"] else ((_UNMARKED, "A release was made under a seeded key."),),
            outcome=(_outcome(found["segments"]),),
            tiles=(
                Tile("Version", str(found["version"]), f"of about {slots}"),
                Tile("Items", str(len(found["items"]))),
                Tile("Cells", str(len(found["segments"])), "values of features, or codes"),
            ),
            sections=(_items(found), _cells(found), _noise(found)),
            provenance=(("Computed from", "the models topic: nothing that was not released"),),
        )
    )


def _outcome(segments: Sequence[Mapping[str, Any]]) -> str:
    if not segments:
        return "There is one item, so nothing is preferred."
    sure = sum(one["sure"] >= _SURE for one in segments)
    return (
        f"In {sure} of {count_text(len(segments), 'cell')} the best item is known with {percent(_SURE)}; in the others "
        f"its lead over the second may be noise."
    )


def _items(found: Mapping[str, Any]) -> Section:
    ordered = sorted(found["items"], key=lambda one: -one["reward"])
    rewards = [_Effect(_called(one), one["reward"], _DEVIATIONS * one["deviation"]) for one in ordered]
    effects = [
        _Effect(f"{_called(one)}: {each['cell']}", each["effect"], _DEVIATIONS * each["deviation"])
        for one in ordered
        for each in one["effects"]
    ]
    surest = sorted(effects, key=lambda one: -abs(one.effect) / max(one.half, 1e-300))
    return Section(
        "items",
        "What it prefers",
        (
            Pictures(
                (
                    _dots("rewards", "Items by expected reward", "Over all visits", rewards[:_MOST], "Reward"),
                    _dots(
                        "effects",
                        "What raises and lowers rewards most surely",
                        "What a cell adds to an item's reward",
                        surest[:_MOST],
                        "Difference of the reward",
                    ),
                )
            ),
        ),
    )


def _cells(found: Mapping[str, Any]) -> Section:
    segments: Sequence[Mapping[str, Any]] = found["segments"]
    called = {one["item"]: _called(one) for one in found["items"]}
    rows = tuple(
        (
            Cell(one["cell"]),
            Cell(called[one["item"]], f"expected reward {one['reward']:.4f}"),
            Cell(f"{one['margin']:.4f}", f"before {called[one['second']]}"),
            Cell(percent(one["sure"])),
        )
        for one in segments
    )
    shown = sorted(segments, key=lambda one: -one["sure"])[:_MOST]
    drawing = Drawing(
        "sure",
        "How sure the best item of a cell is",
        f"Probability that the best item is better than the second, the surest {len(shown)} of {len(segments)} cells; "
        f"half is a guess. Green from {percent(_SURE)} on.",
        "; ".join(f"{one['cell']}: {called[one['item']]}, {percent(one['sure'])}" for one in shown),
        partial(_draw_sure, [(f"{one['cell']}: {called[one['item']]}", one["sure"]) for one in shown]),
    )
    table = Table("The best item of each cell", ("Cell", "Best item", "Its lead", "Sure"), rows)
    return Section("cells", "For whom", (Pictures((drawing,)), table) if shown else (table,))


def _noise(found: Mapping[str, Any]) -> Section:
    shares: Mapping[str, float] = found["noise_share"]
    drawing = Drawing(
        "noise",
        "What noise did to it",
        "Share of the noise in the variance of an average effect; the rest is that people differ. More slots lower it.",
        "; ".join(f"{name}: {percent(share)}" for name, share in shares.items()),
        partial(_draw_noise, shares),
    )
    return Section("noise", "The noise's share", (Pictures((drawing,)),))


def _called(item: Mapping[str, Any]) -> str:
    name = f"item {item['item']}" if isinstance(item["item"], int) else item["item"]
    title = item.get("title", "")
    return f"{title} ({name})" if title and title != name else name


def _dots(name: str, title: str, what: str, rows: Sequence[_Effect], axis: str) -> Drawing:
    return Drawing(
        name,
        title,
        f"{what}, with 95 % of what each may be; grey where that holds 0.",
        "; ".join(f"{one.name}: {one.effect:.4f} within {one.half:.4f}" for one in rows),
        partial(_draw_dots, rows, axis),
    )


def _draw_dots(rows: Sequence[_Effect], label: str, sheet: Sheet) -> None:
    (axes,) = sheet.named_rows([one.name for one in rows])
    for place, one in enumerate(rows):
        colour = BLUE if abs(one.effect) > one.half else GREY
        axes.errorbar(one.effect, place, xerr=one.half, color=colour, marker="o", linestyle="none", capsize=2)
    axes.axvline(0.0, color=GREY, linewidth=0.9)
    axes.set_xlabel(label)


def _draw_sure(rows: Sequence[tuple[str, float]], sheet: Sheet) -> None:
    (axes,) = sheet.named_rows([name for name, _ in rows])
    colours = [GREEN if sure >= _SURE else AMBER for _, sure in rows]
    axes.barh(range(len(rows)), [sure for _, sure in rows], color=colours, height=0.55)
    axes.axvline(0.5, color=GREY, linewidth=0.9, linestyle="--")
    axes.set(xlabel="Probability", xlim=(0, 1))


def _draw_noise(shares: Mapping[str, float], sheet: Sheet) -> None:
    (axes,) = sheet.named_rows(list(shares))
    axes.barh(range(len(shares)), list(shares.values()), color=BLUE, height=0.55)
    axes.set(xlabel="Share of the variance", xlim=(0, 1))
