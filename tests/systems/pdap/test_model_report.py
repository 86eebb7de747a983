"""What a released model of P-DAP shows to whom: planted preferences are found by cell, from the record alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.client import Client, Item
from hushstream.engine.learner.items import catalogue_of
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdap.cells import Grid
from hushstream.systems.pdap.model_report import ShownCell, TicketTable, cell_text, change_of_tickets
from recordings import KEYS, Loop

FEATURES = {
    "country": {"kind": "category", "vocabulary": ["de", "fr", "it"]},
    "age": {"kind": "number", "range": [16, 96]},
}
LIKED = {"de": "north/boots", "fr": "south/tea", "it": "south/tea", None: "south/tea"}


def loop_of(folder: Path, named: bool, **changes: Any) -> Loop:
    vendors = [
        {"name": name, "items": {"capacity": 2} | ({"named": True} if named else {})} for name in ("north", "south")
    ]
    settings = {
        "feedback": {"attribution_window_seconds": 3.0},
        "cells": {"split_at": 40, "growth": 0.0, "levels": 2},
        "release": {"window_units": 60, "kappa": 1.0},
        "privacy": {"epsilon": 8.0},
    }
    return Loop(
        prepare(
            folder,
            parse_config({"system": "pdap", "deployment": "mall", "vendors": vendors, **settings, **changes}),
            keys=KEYS,
        )
    )


def played(loop: Loop, named: bool, visits: int) -> None:
    """Visitors of both countries, who reward what their country likes."""

    async def run() -> None:
        async with (
            Client(loop.log_of("north"), rules=loop.system.requests, party="north") as north,
            Client(loop.log_of("south"), rules=loop.system.requests, party="south") as south,
        ):
            if named:
                await north.items.add_all([Item("boots", "Winter boots"), Item("hat")])
                await south.items.add_all([Item("tea"), Item("cup")])
            draw = np.random.default_rng(5)
            for number in range(visits):
                country = str(draw.choice(["de", "fr"]))
                context = {"country": country, "age": float(draw.uniform(16, 96))}
                event, client = f"e{number}", (north, south)[number % 2]
                decision = await client.decide(event, f"u{number}", context, timeout=None)
                shown = decision.item if named else decision.arm
                liked = LIKED[country] if named else {"de": 0, "fr": 2}[country]
                await client.shown(event, f"u{number}", shown)
                await client.reward(event, f"u{number}", shown, float(shown == liked))
            for client in (north, south):
                await client.end_phase(0)

    asyncio.run(run())


def values(loop: Loop) -> list[bytes]:
    return [record.value for record in loop.log.slice("models", 0, 0).records]


@pytest.mark.parametrize("named", [True, False])
def test_what_each_country_likes_is_shown_in_its_cells_by_name(named: bool, tmp_path: Path) -> None:
    loop = loop_of(tmp_path, named, features=FEATURES)
    played(loop, named, 1_200)
    rules = loop.system.requests.catalogues.values()
    catalogues = {one.party: catalogue_of(one, loop.log.slice(one.topic, 0, 0)) for one in rules}
    view = loop.system.models
    found = view.read(values(loop), None, catalogues)
    told = found.as_json()
    assert told["pool"] == 4
    assert sum(one["share"] for one in told["items"]) == pytest.approx(1.0)
    assert told["cells"][0]["cell"] == "everywhere"
    assert all(sum(item["share"] for item in one["items"]) == 1.0 for one in told["cells"])
    # A vocabulary of three and "unknown" lies at 1/8, 3/8, 5/8, 7/8: the first cut leaves both countries in one half.
    assert {one["cell"] for one in told["cells"] if one["level"] == 1} == {
        "age 16 to 56, country de or fr",
        "age 56 to 96, country de or fr",
    }
    deeper = {one["cell"].split(", ")[1]: one["items"][0]["item"] for one in told["cells"] if one["level"] == 2}
    names = ("north/Winter boots (boots)", "south/tea") if named else ("north/0", "south/0")
    assert (deeper["country de"], deeper["country fr"]) == names
    text = found.as_text()
    assert text.startswith("REPRODUCIBLE, NOT PRIVATE\n")
    assert f"Version {told['version']}, of 1,200 outcomes: {len(told['cells'])} open cells, 4 items" in text
    assert "age 16 to 56" in text
    older = view.read(values(loop), 1, catalogues)
    change = view.change(older, found).as_json()
    assert (change["older"], change["newer"]) == (1, told["version"])
    assert {one["cell"] for one in change["opened"]} == {one["cell"] for one in told["cells"]} - {
        one.name for one in older.cells
    }
    # The first version of named items is of the vendors' first items alone, before any outcome.
    shares = {one["item"]: one["share"] for one in older.as_json()["items"]}
    assert all(
        one["by"] == pytest.approx(share - shares.get(one["item"], 0.0))
        for one in change["moved"]
        for share in (next((s["share"] for s in told["items"] if s["item"] == one["item"]), 0.0),)
    )
    assert change["moved"]
    assert "opened" in view.change(older, found).as_text()
    assert view.export is None


def test_a_version_whose_predecessors_are_gone_is_refused(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, True, features=FEATURES)
    played(loop, True, 400)
    view = loop.system.models
    records = [value for value in values(loop) if codec.decode(value)[0] == "TicketModel"]
    assert len(records) > 2
    with pytest.raises(HushstreamError, match=r"expected a released model on topic models, got 0 of them"):
        view.read([], None, {})
    with pytest.raises(
        HushstreamError, match=rf"expected versions 1 to {len(records)} of the model .* got {len(records) - 1}"
    ):
        view.read(records[1:], None, {})
    with pytest.raises(HushstreamError, match=r"expected versions 1 to 99 of the model"):
        view.read(records, 99, {})


def test_cells_whose_values_are_the_same_are_not_taken_for_one_another(tmp_path: Path) -> None:
    """A cut that parts no two values leaves a deeper cell with those of the one around it."""
    cells = {"split_at": 40, "growth": 0.0, "levels": 3}
    core = loop_of(tmp_path, True, features={"country": FEATURES["country"]}, cells=cells).system.core
    grid = core.config.grid
    paths = grid.paths(np.array([[1 / 8]]))
    wide, deep = (int(grid.at_level(paths, level)[0]) for level in (2, 3))
    assert cell_text(core, wide) == cell_text(core, deep) == "country de"

    def table(version: int, *cells: tuple[int, str]) -> TicketTable:
        shown = tuple(ShownCell(cell, cell_text(core, cell), 2, ((item, 256),)) for cell, item in cells)
        return TicketTable(version, 1, 2, shown, (), True)

    change = change_of_tickets(table(1, (wide, "tea")), table(2, (wide, "tea"), (deep, "boots")))
    assert [one.tickets[0][0] for one in change.opened] == ["boots"]
    assert not change.changed


def test_the_sides_of_a_cell_are_where_its_contexts_lie() -> None:
    grid, draw = Grid(dimension=3, branching=3, levels=3), np.random.default_rng(1)
    contexts = draw.random((200, 3))
    paths = grid.paths(contexts)
    for level in range(4):
        for context, cell in zip(contexts, grid.at_level(paths, level).tolist(), strict=True):
            for place, (low, high) in zip(context, grid.sides(cell), strict=True):
                assert low - 1e-12 <= place <= high + 1e-12
                assert high - low == pytest.approx(3.0**-level)


def test_cells_of_numbers_are_told_by_their_places(tmp_path: Path) -> None:
    core = loop_of(tmp_path, True, features={"dimension": 2}).system.core
    cell = core.config.grid.at_level(core.config.grid.paths(np.array([[0.1, 0.9]])), 1)[0]
    assert cell_text(core, int(cell)) == "number 0 from 0 to 0.5, number 1 from 0.5 to 1"
