"""Items by name where vendors share a deployment: catalogues, decisions, and the page of a released model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.client import Client, Item
from hushstream.engine.catalogue import BadItem, CatalogueFull, RepeatedItem, StaleCatalogue, UnknownItem
from hushstream.engine.declare.declaration import readers, writers
from hushstream.engine.declare.requests import RequestRefused, UnknownArm
from hushstream.engine.learner.items import catalogue_of
from hushstream.engine.values import ConfigurationError
from hushstream.gateway.conversation.translation import Translation
from hushstream.gateway.problems import Problem
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy, whole
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdap.cells import Grid
from hushstream.systems.pdap.model_report import ShownCell, TicketTable, cell_text, change_of_tickets
from recordings import KEYS, Loop

AT = [0.2, 0.7]


def values_of(named: Any = True, **changes: Any) -> dict[str, Any]:
    vendors = [{"name": "north", "items": {"capacity": 3}}, {"name": "south", "items": {"capacity": 4}}]
    for vendor in vendors:
        vendor["items"] |= {"named": True} if named is True else {}
    settings = {"features": {"dimension": 2}, "feedback": {"attribution_window_seconds": 3.0}}
    return {"system": "pdap", "deployment": "mall", "vendors": vendors, **settings, **changes}


def loop_of(folder: Path, **changes: Any) -> Loop:
    return Loop(prepare(folder, parse_config(values_of(**changes)), keys=KEYS))


def client_of(loop: Loop, vendor: str) -> Client:
    return Client(loop.log_of(vendor), rules=loop.system.requests, party=vendor)


def played(loop: Loop, play: Callable[[Client, Client], Awaitable[Any]]) -> Any:
    """Let the clients of both vendors act."""

    async def run() -> Any:
        async with client_of(loop, "north") as north, client_of(loop, "south") as south:
            return await play(north, south)

    return asyncio.run(run())


async def stocked(north: Client, south: Client) -> None:
    await north.items.add_all([Item("boots", "Winter boots"), Item("hat")])
    await south.items.add_all([Item("tea"), Item("hat")])


def reasons(loop: Loop, topic: str) -> list[str]:
    records = loop.log.slice(topic, 0, 0).records
    found = (codec.decode(record.value) for record in records)
    return [fields["reason"] for name, fields in found if name == "DeadLetter"]


def test_decisions_name_the_items_of_all_vendors_and_feedback_takes_these_names(tmp_path):
    loop = loop_of(tmp_path)

    async def play(north: Client, south: Client) -> set[str | None]:
        await stocked(north, south)
        shown = set()
        for number in range(40):
            decision = await north.decide(f"e{number}", "ann", AT, timeout=None)
            shown.add(decision.item)
            assert decision.item is not None
            assert decision.catalogue > 0
            await north.shown(f"e{number}", "ann", decision.item)
            await north.reward(f"e{number}", "ann", decision.item, 1.0)
        one = await north.decide("one", "ann", AT, eligible=["south/hat"], timeout=None)
        assert (one.item, one.arm) == ("south/hat", 4)
        slate = await north.rank("s", "ann", AT, 9, timeout=None)
        assert sorted(str(one.item) for one in slate) == ["north/boots", "north/hat", "south/hat", "south/tea"]
        return shown

    assert played(loop, play) == {"north/boots", "north/hat", "south/tea", "south/hat"}
    assert not reasons(loop, "dead-letters-edge.north")


def test_items_come_and_go_while_it_runs_and_what_is_published_follows_from_the_logs(tmp_path):
    loop = loop_of(tmp_path)

    async def visit(client: Client, event: str) -> str:
        decision = await client.decide(event, "ann", AT, timeout=None)
        assert decision.item is not None
        await client.shown(event, "ann", decision.item)
        await client.reward(event, "ann", decision.item, float(decision.item == "south/tea"))
        return decision.item

    async def play(north: Client, south: Client) -> None:
        await stocked(north, south)
        for number in range(30):
            await visit(north, f"a{number}")
        await south.items.retire("tea")
        assert "south/tea" not in {await visit(north, f"b{number}") for number in range(60)}
        await north.items.add("scarf")
        assert "north/scarf" in {await visit(south, f"c{number}") for number in range(60)}
        await south.items.add("tea")
        assert "south/tea" in {await visit(north, f"d{number}") for number in range(60)}
        for client in (north, south):
            await client.end_phase(0)

    played(loop, play)
    parts = {source: whole(records) for source, records in loop.log.partitions()}
    found = verify(LogCopy(parts), loop.system, KEYS)
    assert found.ok, found.findings
    assert found.of("releases")[Status.EQUAL] >= 1
    # One for each change: the window that it closes is released ahead of it, and is in the same one.
    assert found.of("models")[Status.EQUAL] >= 7
    changed = {**parts, ("items.south", 0): whole(parts["items.south", 0].records[:-1])}
    assert not verify(LogCopy(changed), loop.system, KEYS).ok


def test_many_items_at_once_are_one_version_of_the_model_and_it_follows_from_the_logs(tmp_path):
    loop, one_by_one = (loop_of(tmp_path / name, vendors=_ROOMY) for name in ("at-once", "one-by-one"))
    for each, alone in ((loop, False), (one_by_one, True)):
        for number in range(30):
            items = [{"item": f"i{number}", "offered": True, "title": "", "features": ""}]
            fields = {"version": number + 1, "items": items, "config_digest": each.system.digest}
            each.log.append("items.north", 0, codec.encode("ItemChanges", fields))
            if alone:
                each.driver.pump()
        each.driver.pump()
    at_once, last = (list(each.log.slice("models", 0, 0).records) for each in (loop, one_by_one))
    # Behind the genesis; one by one the release of a window and the change behind it have arrived together, too.
    assert (len(at_once), len(last)) == (1 + 1, 1 + 30)
    # A version holds the tickets that are new: the last ones are of the same items.
    made = [[codec.decode(one.value)[1]["tickets"] for one in records[1:]] for records in (at_once, last)]
    assert [tickets for tickets in made[0] if tickets][-1] == [tickets for tickets in made[1] if tickets][-1]
    copy = LogCopy({source: whole(records) for source, records in loop.log.partitions()})
    assert verify(copy, loop.system, KEYS).ok


_ROOMY = [{"name": name, "items": {"capacity": 40, "named": True}} for name in ("north", "south")]


def test_bad_items_are_refused_at_the_client_and_are_dead_letters_behind_it(tmp_path):
    loop = loop_of(tmp_path)

    async def play(north: Client, south: Client) -> None:
        await stocked(north, south)
        for unknown in ("boots", "east/boots", "north/none", "south/boots", "x" * (1 << 20), "/"):
            with pytest.raises(UnknownArm) as caught:
                await north.decide("bad", "ann", AT, eligible=[unknown], timeout=None)
            assert len(str(caught.value)) < 200
        with pytest.raises(UnknownArm, match="got a number"):
            await north.shown("bad", "ann", 0)
        for bad, error in (("x" * (1 << 20), BadItem), ("", BadItem), ("hat", RepeatedItem), ("\ud800", BadItem)):
            with pytest.raises(error) as refused:
                await north.items.add(bad)
            assert len(str(refused.value)) < 200
        with pytest.raises(BadItem, match="declares none"):
            await north.items.add("cap", features={"colour": "red"})
        with pytest.raises(UnknownItem):
            await north.items.retire("tea")
        await north.items.add("cap")
        with pytest.raises(CatalogueFull, match="no row is reused here, got 3 of 3 that have or had one"):
            await north.items.add("one too many")
        # Two clients of one vendor race: what does not count is told to whoever sent it, and nothing is lost.
        async with client_of(loop, "south") as other:
            ways = (south.items.add("salt"), other.items.add("rice"))
            found = await asyncio.gather(*ways, return_exceptions=True)
            assert all(isinstance(one, int | StaleCatalogue) for one in found)
            counted = sum(isinstance(one, int) for one in found)
            assert len(await other.items.list()) == 2 + counted > 2

    played(loop, play)
    change = {"version": 1, "items": [{"item": "x", "offered": True, "title": "", "features": ""}]}
    before = len(reasons(loop, "dead-letters-edge.north"))
    loop.put("items.north", "ItemChanges", **change, config_digest=loop.system.digest)
    loop.put("items.north", "ItemChanges", **change, config_digest=bytes(16))
    loop.junk("items.north")
    loop.driver.pump()
    assert reasons(loop, "dead-letters-edge.north")[before:] == [
        "item_refused",
        "other_configuration",
        "not_single_object",
    ]


def test_a_vendor_shows_its_own_before_any_model_and_the_baseline_while_there_is_nothing(tmp_path):
    loop = loop_of(tmp_path)

    async def play(north: Client, south: Client) -> None:
        with pytest.raises(RequestRefused):
            await north.decide("none", "ann", AT, timeout=None)
        await south.items.add("tea")
        assert (await north.decide("first", "ann", AT, timeout=None)).item == "south/tea"
        await south.items.retire("tea")
        kept = await north.decide("last", "ann", AT, baseline="south/tea", timeout=None)
        assert (kept.policy, kept.item) == ("refused", "south/tea")

    played(loop, play)
    assert reasons(loop, "dead-letters-edge.north") == ["nothing_offered", "nothing_offered"]


def test_a_gateway_of_a_vendor_lists_and_takes_the_items_of_all(tmp_path):
    loop = loop_of(tmp_path)

    async def play(north: Client, south: Client) -> None:
        await stocked(north, south)
        await north.items.refresh_all()
        words = Translation(loop.system.requests, north.items)
        assert [one["item"] for one in words.items()] == ["north/boots", "north/hat", "south/tea", "south/hat"]
        assert words.items()[0]["title"] == "Winter boots"
        assert words.eligible(["south/tea"], AT) == ["south/tea"]
        assert north.items.holds("south/tea")
        assert not north.items.holds("tea")
        assert not north.items.holds("east/tea")
        with pytest.raises(Problem):
            words.eligible([0], AT)

    played(loop, play)


def test_only_a_vendor_changes_its_catalogue_and_all_clients_read_it(tmp_path):
    system = loop_of(tmp_path).system
    topic = next(topic for topic in system.topics if topic.name == "items.north")
    assert writers(topic, system.roles) == ("client.north",)
    assert readers(topic, system.roles) == ("client.north", "client.south", "learner.north", "operator")
    assert (topic.retention_ms, topic.cleanup) == (None, "delete")


def test_names_change_nothing_of_what_is_promised(tmp_path):
    """Noise is on blocks that have outcomes; which arms there may be, and when they come, is public."""
    named, numbered = (loop_of(tmp_path / str(one), named=one).system for one in (True, False))
    assert named.guarantee() == numbered.guarantee()
    assert named.core.parameters == numbered.core.parameters
    assert "items.north" not in numbered.partitions


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({"capacity": 3, "named": "sure"}, r"vendors\.0\.items\.named: expected true or false"),
        ({"capacity": 3}, r"vendors\.items\.named: expected the same of all vendors"),
        ({"capacity": 0, "named": True}, r"vendors\.items\.capacity"),
        ({"capacity": 3, "named": True, "reserved": 1}, "reserved"),
    ],
)
def test_a_catalogue_that_cannot_be_is_refused(items, message):
    values = values_of()
    values["vendors"][0]["items"] = items
    with pytest.raises(ConfigurationError, match=message):
        parse_config(values)


FEATURES = {
    "country": {"kind": "category", "vocabulary": ["de", "fr", "it"]},
    "age": {"kind": "number", "range": [16, 96]},
}
LIKED = {"de": "north/boots", "fr": "south/tea", "it": "south/tea", None: "south/tea"}


def loop_with(folder: Path, named: bool, **changes: Any) -> Loop:
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


def visited(loop: Loop, named: bool, visits: int) -> None:
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
def test_what_each_country_likes_is_shown_in_its_cells_by_name(named, tmp_path):
    loop = loop_with(tmp_path, named, features=FEATURES)
    visited(loop, named, 1_200)
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


def test_a_version_whose_predecessors_are_gone_is_refused(tmp_path):
    loop = loop_with(tmp_path, True, features=FEATURES)
    visited(loop, True, 400)
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


def test_cells_whose_values_are_the_same_are_not_taken_for_one_another(tmp_path):
    """A cut that parts no two values leaves a deeper cell with those of the one around it."""
    cells = {"split_at": 40, "growth": 0.0, "levels": 3}
    core = loop_with(tmp_path, True, features={"country": FEATURES["country"]}, cells=cells).system.core
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


def test_the_sides_of_a_cell_are_where_its_contexts_lie():
    grid, draw = Grid(dimension=3, branching=3, levels=3), np.random.default_rng(1)
    contexts = draw.random((200, 3))
    paths = grid.paths(contexts)
    for level in range(4):
        for context, cell in zip(contexts, grid.at_level(paths, level).tolist(), strict=True):
            for place, (low, high) in zip(context, grid.sides(cell), strict=True):
                assert low - 1e-12 <= place <= high + 1e-12
                assert high - low == pytest.approx(3.0**-level)


def test_cells_of_numbers_are_told_by_their_places(tmp_path):
    core = loop_with(tmp_path, True, features={"dimension": 2}).system.core
    cell = core.config.grid.at_level(core.config.grid.paths(np.array([[0.1, 0.9]])), 1)[0]
    assert cell_text(core, int(cell)) == "number 0 from 0 to 0.5, number 1 from 0.5 to 1"
