"""Items by name in a whole deployment: a catalogue that changes while users come, on the direct runner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.client import Client, Item
from hushstream.client.decisions import Decision
from hushstream.engine.catalogue import BadItem, CatalogueFull, RepeatedItem, StaleCatalogue, UnknownItem
from hushstream.engine.declare.requests import BadReward, RequestRefused, UnknownArm
from hushstream.engine.learner.items import catalogue_of
from hushstream.engine.records import InputRecord
from hushstream.engine.values import ConfigurationError
from hushstream.features.schema import declare
from hushstream.replay.runners.direct import DirectEventLog
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.contribution.feature_slots import unpack_reports
from hushstream.systems.p2b.model_file import ExportedFeatures
from recordings import KEYS, Loop

VALUES: dict[str, Any] = {
    "system": "p2b",
    "deployment": "named",
    "items": {"capacity": 3, "named": True},
    "features": {"country": {"kind": "category", "vocabulary": ["de", "fr", "se"]}},
    "expected_slots": 40,
    "slot": {"after_interactions": 2, "period_seconds": 10.0},
    "release": {"form": "features", "window_units": 3, "sums": "fresh"},
    "feedback": {"settle_seconds": 2.0, "attribution_window_seconds": 2.0},
}
VISIT = {"country": "fr"}


def loop_of(folder: Path, **changes: Any) -> Loop:
    values = {**VALUES, **{key: {**VALUES.get(key, {}), **value} for key, value in changes.items()}}
    return Loop(prepare(folder, parse_config(values), keys=KEYS))


def played(loop: Loop, play: Callable[[Client], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Client(loop.log_of(), rules=loop.system.requests) as client:
            return await play(client)

    return asyncio.run(run())


async def visit(client: Client, event: str, user: str, **asked: Any) -> Decision:
    """A visit whose item is shown and clicked."""
    decision = await client.decide(event, user, VISIT, timeout=None, **asked)
    assert decision.item is not None
    await client.shown(event, user, decision.item)
    await client.reward(event, user, decision.item, 1.0)
    return decision


def fields_of(loop: Loop, topic: str, schema: str) -> list[Mapping[str, Any]]:
    records = (codec.decode(record.value) for record in loop.log.slice(topic, 0, 0).records)
    return [fields for name, fields in records if name == schema]


def test_decisions_name_items_of_the_catalogue_that_they_were_made_under(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        assert await client.items.add("boots", "Winter boots") == 1
        first = await visit(client, "a", "ann")
        assert (first.item, first.catalogue) == ("boots", 1)
        await client.items.add_all([Item("sandals"), Item("socks")])
        seen = {(await visit(client, f"b{number}", f"u{number}")).item for number in range(12)}
        assert seen == {"boots", "sandals", "socks"}
        one = await client.decide("c", "bob", VISIT, eligible=["socks"], timeout=None)
        assert (one.item, one.arm, one.catalogue) == ("socks", 2, 3)
        await client.items.retire("socks")
        assert {(await visit(client, f"d{number}", f"v{number}")).item for number in range(12)} == {"boots", "sandals"}
        # What was decided before keeps its name and its feedback.
        await client.reward("c", "bob", "socks", 1.0)
        listed = [(one.item, one.title, one.offered) for one in await client.items.list()]
        assert listed == [("boots", "Winter boots", True), ("sandals", "", True), ("socks", "", False)]

    played(loop, play)
    assert not fields_of(loop, "dead-letters-edge", "DeadLetter")


def test_decisions_name_items_that_the_model_knew_beforehand(tmp_path: Path) -> None:
    """Also in the table of decisions; versions begin behind those of the known items."""
    schema, paid = declare(VALUES["features"]), {"epsilon_micro": 1, "delta_units": "0"}
    about = {"deployment": "before", "version": 1, "slots": 9.0, "reward_variance": 0.2}
    about |= {"paid": {"which": paid, "took_part": paid}}
    means = np.array([[0.9, *[0.0] * schema.cells], [0.1, *[0.0] * schema.cells]])
    start = ExportedFeatures(about, ("socks", "boots"), (), schema, means, np.full_like(means, 1e-6))
    inputs = {"start": ("model.json", start.as_json().decode())}
    loop = Loop(prepare(tmp_path / "shop", parse_config(VALUES), inputs, KEYS))

    async def play(client: Client) -> None:
        assert await client.items.add("boots") == 3
        first = await visit(client, "a", "ann", track="private")
        assert (first.item, first.catalogue, first.arm) == ("boots", 3, 1)
        assert client.items.left_out() == ["socks"]
        await client.items.add("socks")
        seen = [(await visit(client, f"b{number}", f"u{number}", track="private")).item for number in range(4)]
        assert seen == ["socks"] * 4, "the model that users begin with prefers them"
        assert client.items.left_out() == []

    played(loop, play)
    assert not fields_of(loop, "dead-letters-edge", "DeadLetter")


class _Late(DirectEventLog):
    """A log whose reader hears what there was a while ago."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop.log, loop.driver, 1)

    async def read(self, topic: str, partition: int, low: int) -> Sequence[InputRecord]:
        records = await super().read(topic, partition, low)
        await asyncio.sleep(0.01)
        return records


def test_two_catalogues_that_race_give_one_change_and_one_clear_error(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        async with Client(_Late(loop), rules=loop.system.requests) as other:
            answers = await asyncio.gather(other.items.add("boots"), client.items.add("boots"), return_exceptions=True)
            assert isinstance(answers[0], StaleCatalogue)
            assert answers[1] == 1
            with pytest.raises(RepeatedItem):
                await other.items.add("boots")
            assert await other.items.add("socks") == 2

    played(loop, play)
    (letter,) = fields_of(loop, "dead-letters-edge", "DeadLetter")
    assert letter["reason"] == "item_refused"


def test_bad_items_are_refused_at_the_client(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        items = client.items
        for bad in ("", "x" * 129, "é" * 65, "x" * (1 << 20)):
            with pytest.raises(Exception, match="expected an id of 1 to 128 bytes") as caught:
                await items.add(bad)
            assert len(str(caught.value)) < 200
        with pytest.raises(Exception, match="title: expected at most 256 bytes"):
            await items.add("boots", "t" * 257)
        with pytest.raises(Exception, match=r"items\.features"):
            await items.add("boots", features={"colour": "red"})
        for words in (("\ud800", ""), ("boots", "\udfff")):
            with pytest.raises(BadItem, match="that UTF-8 can write"):
                await items.add(*words)
        with pytest.raises(HushstreamError, match="user: expected text that UTF-8 can write"):
            await client.decide("e", "\ud800", VISIT)
        with pytest.raises(BadReward, match="got a text"):
            await client.reward("e", "ann", "boots", "1")  # type: ignore[arg-type]
        with pytest.raises(UnknownItem):
            await items.retire("boots")
        await items.add_all([Item("a"), Item("b"), Item("c")])
        with pytest.raises(CatalogueFull, match="3 of 3"):
            await items.add("d")
        await items.retire("b")
        with pytest.raises(CatalogueFull, match="the first is free in"):
            await items.add("d")
        with pytest.raises(UnknownArm):
            await client.decide("e", "ann", VISIT, eligible=["nothing like it"])
        with pytest.raises(UnknownArm, match="got a number"):
            await client.decide("e", "ann", VISIT, eligible=[1])
        for one in ("a", "c"):
            await items.retire(one)
        with pytest.raises(RequestRefused):
            await client.decide("e", "ann", VISIT, timeout=None)

    played(loop, play)
    # Whether a row is free again is decided by the log's time, so the change was sent.
    reasons = [one["reason"] for one in fields_of(loop, "dead-letters-edge", "DeadLetter")]
    assert reasons == ["item_refused", "nothing_offered"]


def test_an_item_that_comes_back_has_its_row_and_what_was_learned_of_it(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        await client.items.add_all([Item("a"), Item("b")])
        await client.items.retire("a")
        await client.items.add("a", "again")
        a, b = await client.items.list()
        assert (a.item, a.title, a.offered, a.version, b.item) == ("a", "again", True, 1, "b")

    played(loop, play)


def test_a_name_needs_features(tmp_path: Path) -> None:
    values = {**VALUES, "features": {"dimension": 3}, "release": {}}
    with pytest.raises(ConfigurationError, match=r"items\.named: expected false for form codes"):
        parse_config(values)


def test_without_names_items_are_numbers(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, items={"named": False})

    async def play(client: Client) -> None:
        decision = await client.decide("a", "ann", VISIT, eligible=[1], timeout=None)
        assert (decision.arm, decision.item, decision.catalogue) == (1, None, 0)
        with pytest.raises(RequestRefused, match=r"items\.named"):
            await client.items.list()

    played(loop, play)
    assert "items" not in {topic for (topic, _), _ in loop.log.partitions()}


def test_slots_name_their_catalogue_and_sums_begin_with_their_item(tmp_path: Path) -> None:
    """The rows of a window are those of the catalogue that it closed under; what a row had before is not in them."""
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        await client.items.add_all([Item("a"), Item("b"), Item("c")])
        for number in range(60):
            await visit(client, f"e{number}", f"u{number // 2}")
        await client.items.retire("c")
        number = 60
        while True:
            await visit(client, f"e{number}", f"u{number // 2}")
            number += 1
            try:
                await client.items.add("d")
                break
            except CatalogueFull:
                assert number < 2000
        assert (await client.items.list())[2].item == "d"
        for later in range(number, number + 120):
            await visit(client, f"e{later}", f"u{later // 2}")

    played(loop, play)
    sums = fields_of(loop, "crowds", "ItemSums")
    versions = [fields["catalogue"] for fields in sums]
    assert versions == sorted(versions)
    assert versions[-1] == 5
    assert np.frombuffer(sums[-1]["entries"], "<i4").tolist() == [1, 2, 5]
    slots = [fields["content"] for fields in fields_of(loop, "reports", "FeatureSlot")]
    reports = unpack_reports(loop.system.core.linear.layout, slots)
    assert set(reports.catalogues[reports.held].tolist()) >= {3, 4, 5}
    model = fields_of(loop, "models", "ItemModel")[-1]
    assert np.frombuffer(model["entries"], "<i4").tolist() == [1, 2, 5]


def test_a_released_model_is_shown_by_the_names_that_its_rows_had(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, items={"capacity": 4})

    async def play(client: Client) -> None:
        await client.items.add_all([Item("boots", "Winter boots"), Item("socks"), Item("cap")])
        for number in range(12):
            await visit(client, f"a{number}", f"u{number % 6}")
        await client.end_phase(0)
        await client.items.add("tent")
        await client.items.retire("socks")

    played(loop, play)
    system = loop.system
    catalogue = catalogue_of(system.requests.catalogue, loop.log.slice("items", 0, 0))
    values = [record.value for record in loop.log.slice("models", 0, 0).records]
    found = system.models.read(values, None, {"": catalogue})
    told = found.as_json()
    # The items that the windows had: no row that never had one, and no item that came later.
    shown = [(one["item"], one.get("title"), one.get("retired")) for one in told["items"]]
    assert shown == [("boots", "Winter boots", None), ("socks", None, True), ("cap", None, None)]
    # What is retired is shown to nobody, so it is best nowhere.
    assert told["segments"]
    assert {item for one in told["segments"] for item in (one["item"], one["second"])} == {"boots", "cap"}
    assert "  Winter boots (boots): " in found.as_text()
    assert "  socks, retired: " in found.as_text()
    assert "item 0" not in found.as_text()
    changed = system.models.change(found, found).as_json()
    assert (changed["entered"], changed["left"]) == ([], [])
    assert {one["item"] for one in changed["moved"]} == {"boots", "socks", "cap"}
