"""Items by name, also rows that stand for one item after another: what counts in windows, totals and a learner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.client import Client, Item
from hushstream.client.decisions import Decision
from hushstream.engine.catalogue import (
    BadItem,
    Catalogue,
    CatalogueFull,
    ItemChange,
    RepeatedItem,
    StaleCatalogue,
    UnknownItem,
)
from hushstream.engine.declare.requests import BadReward, RequestRefused, UnknownArm
from hushstream.engine.learner.items import catalogue_of
from hushstream.engine.records import InputRecord
from hushstream.engine.values import ConfigurationError
from hushstream.features.schema import declare
from hushstream.privacy.keys import seeded_key
from hushstream.replay.runners.direct import DirectEventLog
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.deployment import P2BSystem, reuse_after_ms
from hushstream.systems.p2b.edge.policies import FeaturePolicy, Lesson
from hushstream.systems.p2b.machines.aggregator import FeatureTotals
from hushstream.systems.p2b.machines.shuffler import release_window, window_address
from hushstream.systems.p2b.models import ExportedModel
from hushstream.systems.p2b.server.totals import ItemTotals
from hushstream.systems.p2b.shuffler import ClosedBy, ClosedWindow, ItemRows, ShufflingError, Windows, linear_sums
from hushstream.systems.p2b.slots import pack_null, pack_reports, unpack_reports
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
        assert (one.item, one.arm, one.catalogue) == ("socks", 2, 2)
        await client.items.retire("socks")
        assert {(await visit(client, f"d{number}", f"v{number}")).item for number in range(12)} == {"boots", "sandals"}
        # What was decided before keeps its name and its feedback.
        await client.reward("c", "bob", "socks", 1.0)
        listed = [(one.item, one.title, one.offered) for one in await client.items.list()]
        assert listed == [("boots", "Winter boots", True), ("sandals", "", True), ("socks", "", False)]

    played(loop, play)
    assert not fields_of(loop, "dead-letters-edge", "DeadLetter")


def test_many_items_are_one_record_and_a_few_where_one_cannot_hold_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        assert await client.items.add_all([Item("a"), Item("b")]) == 1
        await client.items.retire("b")
        monkeypatch.setattr("hushstream.client.items.MOST_BYTES_OF_CHANGES", 16 + 4 * len("a"))
        with pytest.raises(RepeatedItem, match=r"change 3 of 3; nothing was sent"):
            await client.items.add_all([Item("b"), Item("c"), Item("a")])
        assert await client.items.add_all([Item("b"), Item("c")]) == 4
        monkeypatch.undo()
        assert [one.since for one in await client.items.list()] == [1, 3, 4]

    played(loop, play)
    changes = fields_of(loop, "items", "ItemChanges")
    assert [(one["version"], len(one["items"])) for one in changes] == [(1, 2), (2, 1), (3, 1), (4, 1)]


def started(folder: Path) -> Loop:
    """A deployment that begins with a model which prefers socks to boots."""
    schema, paid = declare(VALUES["features"]), {"epsilon_micro": 1, "delta_units": "0"}
    about = {"deployment": "before", "private_as_stated": True, "version": 1, "slots": 9.0, "reward_variance": 0.2}
    about |= {"paid": {"which": paid, "zero_out": paid}}
    means = np.array([[0.9, *[0.0] * schema.cells], [0.1, *[0.0] * schema.cells]])
    start = ExportedModel(about, ("socks", "boots"), (), schema, means, np.full_like(means, 1e-6))
    inputs = {"start": ("model.json", start.as_json().decode())}
    return Loop(prepare(folder / "shop", parse_config(VALUES), inputs, KEYS))


def test_users_who_ask_together_are_shown_what_is_offered_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their contexts are scored together, and the model prefers an item that is not offered."""

    async def play(client: Client) -> None:
        async def shown(turn: str) -> set[str | None]:
            asked = [client.decide(f"{turn}{number}", f"u{number}", VISIT, timeout=None) for number in range(9)]
            return {one.item for one in await asyncio.gather(*asked)}

        await client.items.add("boots")
        assert await shown("a") == {"boots"}
        await client.items.add("socks")
        assert await shown("b") == {"socks"}
        await client.items.retire("socks")
        assert await shown("c") == {"boots"}
        # An answer that names no item fails alone, and the client goes on with those behind it.
        unknown = UnknownItem("row: expected one that had an item")
        with monkeypatch.context() as patch:
            patch.setattr(client.items, "of_decision", lambda *_: (_ for _ in ()).throw(unknown))
            with pytest.raises(UnknownItem):
                await client.decide("d", "ann", VISIT, timeout=None)
        assert await shown("e") == {"boots"}

    played(started(tmp_path), play)


def test_decisions_name_items_that_the_model_knew_beforehand(tmp_path: Path) -> None:
    """Also in the table of decisions; versions begin behind those of the known items."""
    loop = started(tmp_path)

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


def test_numbers_are_names_of_items_as_if_the_application_had_added_them(tmp_path: Path) -> None:
    """The same users get the same answers and send the same slots, to the version of the catalogue in them."""

    def seen(named: bool) -> tuple[list[int], dict[bytes, bytes]]:
        loop = loop_of(tmp_path / str(named), items={"named": named}, release={"window_units": 1_000})

        async def play(client: Client) -> list[int]:
            if named:
                for number in range(3):  # each with a version of its own, as numbers have
                    await client.items.add(str(number))
            else:
                with pytest.raises(RequestRefused, match=r"items\.named"):
                    await client.items.list()
            arms = []
            for number in range(80):
                event, user = f"e{number}", f"u{number // 2}"
                decision = await client.decide(event, user, VISIT, timeout=None)
                shown = decision.arm if decision.item is None else decision.item
                await client.shown(event, user, shown)
                await client.reward(event, user, shown, float(decision.arm == 1))
                arms.append(decision.arm)
            return arms

        arms = played(loop, play)
        slots = {fields["report_id"]: fields["content"] for fields in fields_of(loop, "reports", "FeatureSlot")}
        reports = unpack_reports(loop.system.core.linear.layout, list(slots.values()))
        assert set(reports.catalogues[reports.held].tolist()) == {3}
        return arms, slots

    (arms, slots), (other_arms, other_slots) = seen(True), seen(False)
    assert arms == other_arms
    assert len(set(arms)) == 3
    # The changes took log time, so the last users' slots have left in one of the two alone.
    both = slots.keys() & other_slots.keys()
    assert len(both) > 30
    assert {name: slots[name] for name in both} == {name: other_slots[name] for name in both}


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
    sums = fields_of(loop, "window-sums", "ItemSums")
    versions = [fields["catalogue"] for fields in sums]
    assert versions == sorted(versions)
    assert versions[-1] == 3
    assert np.frombuffer(sums[-1]["entries"], "<i4").tolist() == [1, 1, 3]
    slots = [fields["content"] for fields in fields_of(loop, "reports", "FeatureSlot")]
    reports = unpack_reports(loop.system.core.linear.layout, slots)
    assert set(reports.catalogues[reports.held].tolist()) >= {1, 2, 3}
    model = fields_of(loop, "models", "ItemModel")[-1]
    assert np.frombuffer(model["entries"], "<i4").tolist() == [1, 1, 3]


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


ROWS = 3
KEY = seeded_key(1, "shuffler")
COLOURS = declare({"colour": {"kind": "category", "vocabulary": ["red", "blue"]}})


def system_of(items: int = ROWS, **release: object) -> P2BSystem:
    return P2BSystem.declared(
        P2BConfig(
            deployment="shop",
            arms=items,
            context=ContextConfig(declared=declare({"country": {"kind": "category", "vocabulary": ["de", "fr"]}})),
            expected_slots=100,
            release=ReleaseConfig(**{"form": "features", "sums": "fresh", **release}),
            named_items=True,
            item_features=COLOURS,
        )
    )


SYSTEM = system_of()
LAYOUT = SYSTEM.linear.layout
ROW = LAYOUT.schema.encode({"country": "fr"}).row


def rows(catalogue: int, *entries: int) -> ItemRows:
    return ItemRows(catalogue, np.array(entries, "<i4").tobytes(), bytes(len(entries) * COLOURS.row_bytes))


def report(arm: int, catalogue: int, level: int = 1) -> bytes:
    units = LAYOUT.units_of(LAYOUT.schema.blocks(LAYOUT.schema.read(ROW)))
    (content,) = pack_reports(LAYOUT, np.array([arm]), np.array([level]), catalogue, units)
    return content


def counted(contents: Sequence[bytes], of: ItemRows) -> np.ndarray:
    """Slots in the exact sums, by row."""
    reports = unpack_reports(LAYOUT, contents)
    sums = linear_sums(LAYOUT, reports, of.current(reports.arms, reports.catalogues))
    return (sums.ones + sums.zeros)[:, 0] // LAYOUT.budgets[0]


def test_a_slot_of_an_older_version_never_counts_for_the_items_next_in_its_row() -> None:
    """Row 1 has another item since version 7: what was decided before is null, to the very version."""
    contents = [report(1, version) for version in range(1, 12)]
    assert counted(contents, rows(9, 1, 7, 0)).tolist() == [0, 3, 0]


def test_slots_of_rows_whose_item_stayed_count_whatever_their_version() -> None:
    contents = [report(0, version) for version in range(1, 10)]
    assert counted(contents, rows(9, 1, 7, 0)).tolist() == [9, 0, 0]


def test_rows_without_items_and_versions_that_are_not_known_yet_count_nothing() -> None:
    contents = [report(2, 5), report(0, 10), report(0, 2**32 - 1), report(0, 0), pack_null(LAYOUT)]
    assert counted(contents, rows(9, 1, 7, 0)).tolist() == [0, 0, 0]


def test_one_slot_moves_the_sums_no_further_than_the_noise_covers() -> None:
    """The sensitivity of a window: whatever a slot names, it adds what it always added, or nothing."""
    draw = np.random.default_rng(3)
    base = [report(int(draw.integers(3)), int(draw.integers(12)), int(draw.integers(2))) for _ in range(40)]
    for _ in range(200):
        of = rows(int(draw.integers(12)), *draw.integers(0, 12, 3).tolist())
        other = report(int(draw.integers(3)), int(draw.integers(12)), int(draw.integers(2)))
        with_it, without = ([*base, one] for one in (other, pack_null(LAYOUT)))
        exact = []
        for contents in (with_it, without):
            reports = unpack_reports(LAYOUT, contents)
            exact.append(linear_sums(LAYOUT, reports, of.current(reports.arms, reports.catalogues)))
        moved = np.abs(exact[0].ones - exact[1].ones).sum() + np.abs(exact[0].zeros - exact[1].zeros).sum()
        assert moved in (0, LAYOUT.sensitivity)


def test_what_is_released_counts_the_slots_of_the_rows_items_alone() -> None:
    """1,000 slots are 500 scales of the noise, which passes 40 of them once in 10^17 draws."""
    scale = LAYOUT.sensitivity / float(SYSTEM.noise_epsilon)
    for version, counts in ((6, False), (7, True)):
        contents = (report(1, version),) * 1_000
        closed = ClosedWindow(0, ClosedBy.SLOTS, contents, (bytes(16),) * 1_000, rows(9, 1, 7, 0))
        ones = np.frombuffer(release_window(SYSTEM, KEY, bytes(32), 0, closed).record["ones"], "<i8")
        found = ones.reshape(LAYOUT.arms, -1) / scale
        assert bool(found[1, 0] > 40) == counts
        assert (np.abs(found[[0, 2]]) < 40).all()


def test_all_rows_are_noised_whether_items_are_in_them_or_not() -> None:
    closed = ClosedWindow(0, ClosedBy.SLOTS, (pack_null(LAYOUT),) * 4, (), rows(1, 1, 0, 0))
    window = release_window(SYSTEM, KEY, bytes(32), 0, closed).record
    assert (np.frombuffer(window["ones"], "<i8").reshape(LAYOUT.arms, -1) != 0).any(axis=1).all()
    assert (window["catalogue"], window["entries"]) == (1, closed.item_rows.entries)


def test_the_same_slots_under_another_catalogue_have_other_noise() -> None:
    """A journal that was rolled back may meet a change of the catalogue at another place: its sums are others."""
    closed = ClosedWindow(0, ClosedBy.SLOTS, (report(1, 3),) * 4, (bytes(16),) * 4, rows(3, 1, 2, 3))
    others = [rows(4, 1, 2, 3), rows(3, 1, 3, 3)]
    rolled = [closed._replace(item_rows=one) for one in (*others, rows(3, 1, 2, 3))]
    of = [window_address(SYSTEM, KEY, bytes(32), 0, one) for one in rolled]
    assert of[-1] == window_address(SYSTEM, KEY, bytes(32), 0, closed)
    assert len({one.content for one in of}) == 3


def test_windows_follow_the_newest_rows_and_keep_them_over_a_restart() -> None:
    windows = Windows(SYSTEM.window_rules())
    windows.follow(rows(2, 1, 2, 0))
    windows.follow(rows(1, 1, 0, 0))
    assert windows.item_rows == rows(2, 1, 2, 0)
    again = Windows.load(windows.rules, windows.dump())
    assert again.item_rows == windows.item_rows
    assert again.dump() == windows.dump()
    for bad in (rows(3, 1, 2), rows(0, 1, 2, 3), ItemRows(3, b"")):
        with pytest.raises(ShufflingError):
            windows.follow(bad)
    unnamed = Windows(replace(SYSTEM.window_rules(), item_rows=None))
    with pytest.raises(ShufflingError):
        unnamed.follow(rows(1, 1, 2, 3))


# What the aggregator adds up.


def add(totals: ItemTotals, value: int, catalogue: int, *entries: int, variance: float = 4.0) -> None:
    sums = np.full((ROWS, 2), value, dtype=np.int64)
    totals.add(sums, 2 * sums, variance, 10, catalogue, np.array(entries, np.int32))


@pytest.mark.parametrize("carried", [False, True])
def test_a_rows_sums_begin_with_its_item_and_never_hold_the_windows_before(carried: bool) -> None:
    totals = ItemTotals(ROWS, 2, carried)
    add(totals, 1, 2, 1, 2, 0)
    add(totals, 10, 2, 1, 2, 0)
    add(totals, 100, 3, 1, 3, 0)
    # A shuffler that has not heard of it yet.
    add(totals, 1_000, 2, 1, 2, 0)
    assert totals.ones[:, 0].tolist() == [1_111, 100, 1_111]
    assert totals.zeros[:, 0].tolist() == [2_222, 200, 2_222]
    left_out = 2.0 * (8.0 + 16.0) if carried else 0.0
    assert totals.variances.tolist() == [16.0, 4.0 + left_out, 16.0]
    assert (totals.slots, totals.catalogue, totals.entries.tolist()) == (40, 3, [1, 3, 0])
    again = ItemTotals(ROWS, 2, carried)
    again.load(totals.dump())
    assert again.dump() == totals.dump()


def test_rows_that_never_had_an_item_change_nothing_of_the_model() -> None:
    """A capacity that is not used would otherwise bring its noise into what all items share."""
    models = []
    for noise in (0, 10**7):
        totals = FeatureTotals(SYSTEM)
        sums = np.full((ROWS, LAYOUT.cells), 40_000, dtype=np.int64)
        sums[2] += noise
        window = {**SYSTEM.form.domain, **rows(2, 1, 2, 0)._asdict(), "variance": 1e6, "slots": 20}
        window |= {"ones": sums.tobytes(), "zeros": (9 * sums).tobytes(), "private_as_stated": True}
        assert totals.add(window)
        models.append(totals.model())
    assert models[0].fields() == models[1].fields()


# What a learner knows of a row.


def following(*items: tuple[str, str]) -> tuple[FeaturePolicy, Catalogue]:
    catalogue = Catalogue(SYSTEM.catalogue_rules)
    policy = SYSTEM.policy()
    assert isinstance(policy, FeaturePolicy)
    policy.follow(catalogue)
    for item, colour in items:
        take(policy, catalogue, item, colour)
    return policy, catalogue


def take(policy: FeaturePolicy, catalogue: Catalogue, item: str, colour: str = "", offered: bool = True) -> int:
    features = f'{{"colour": "{colour}"}}' if colour else ""
    change = ItemChange(item, catalogue.version + 1, offered, "", features)
    found = catalogue.take(change, catalogue.now_ms + reuse_after_ms(SYSTEM.config))
    if found.entered == catalogue.version:
        policy.entered(found.row)
    return found.row


def adopt(policy: FeaturePolicy, means: Sequence[float], entries: Sequence[int]) -> None:
    table = np.repeat(np.array(means, dtype=np.float64)[:, None], LAYOUT.cells, axis=1)
    policy.adopt("private", 1, table, np.full_like(table, 0.01), np.array([0.1]), np.array(entries, dtype=np.float64))


def mean_of(policy: FeaturePolicy, row: int) -> float:
    return float(policy.shared("private").state.model.table[0, row])


def test_what_a_user_learned_of_an_item_is_not_known_of_the_next_one_in_its_row() -> None:
    policy, catalogue = following(("a", ""), ("b", ""), ("c", ""))
    asked = np.frombuffer(ROW, np.uint8)
    context = policy.kept(asked[None])
    _, state = policy.begin("private")
    for arm in (0, 1, 1):
        policy.learn_all([Lesson(state, context, arm, 1.0)])
    take(policy, catalogue, "b", offered=False)
    take(policy, catalogue, "d")
    fresh = policy.begin("private")[1]
    scored = policy.scores(state, asked).tolist()
    assert scored[1:] == policy.scores(fresh, asked).tolist()[1:]
    assert scored[0] != scored[1]
    assert state.taken[0].tolist() == [0]
    # A reward that comes late is of the old item, and so is its slot.
    policy.learn_all([Lesson(state, context, 1, 1.0)])
    assert state.taken[0].tolist() == [0]
    assert unpack_reports(LAYOUT, policy.contents([context], [1], [1])).catalogues.tolist() == [3]
    again = policy.load_own("private", 0, policy.dump_own(state))
    assert again.catalogue == state.catalogue


def test_a_new_item_starts_from_those_that_the_model_knows() -> None:
    policy, catalogue = following(("a", "red"), ("b", "blue"))
    adopt(policy, [0.4, 0.1, 9.0], [1, 2, 0])
    take(policy, catalogue, "c", "red")
    assert mean_of(policy, 2) == pytest.approx(0.25)
    assert mean_of(policy, 0) == pytest.approx(0.4)
    # A model that has not heard of it is told again.
    adopt(policy, [0.4, 0.1, 9.0], [1, 2, 0])
    assert mean_of(policy, 2) == pytest.approx(0.25)


def spread_of(policy: FeaturePolicy, row: int) -> list[float]:
    return policy.shared("private").state.model.table[:, ROWS + row].tolist()


def released(known: float, new: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of two known items whose cells differ by sign, and of a new one that has 0 in all of them."""
    signs = np.resize([1.0, -1.0], LAYOUT.cells)
    means, variances = np.outer([0.3, -0.3, 0.0], signs), np.full((ROWS, LAYOUT.cells), known)
    means[:, 0], variances[2] = 0.5, new
    return means, variances


@pytest.mark.parametrize(
    ("new", "kept"),
    [pytest.param(0.2, 1.0, id="of-few-slots"), pytest.param(1e-7, 0.0, id="of-many-slots")],
)
def test_a_new_item_leans_on_the_others_until_windows_say_more(new: float, kept: float) -> None:
    policy, catalogue = following(("a", "red"), ("b", "blue"))
    means, variances = released(1e-4, new)
    policy.adopt("private", 1, means, variances, np.array([1e-3]), np.array([1.0, 2.0, 0.0]))
    take(policy, catalogue, "c", "red")
    policy.adopt("private", 2, means, variances, np.array([1e-3]), np.array([1.0, 2.0, 3.0]))
    table = policy.shared("private").state.model.table
    assert table[1:, 2] == pytest.approx((1 - kept) * means[2, 1:] + kept * means[:2, 1:].mean(axis=0), abs=1e-3)
    assert np.allclose(table[:, :2].T, means[:2])
    assert max(spread_of(policy, 2)[1:]) == pytest.approx(kept * 0.3**2, rel=0.1, abs=2e-4)
    # It still does behind a restart, and in the version behind that.
    again, _ = following(("a", "red"), ("b", "blue"), ("c", "red"))
    again.restore_models(policy.dump_models())
    for one in (policy, again):
        one.adopt("private", 3, means, variances, np.array([1e-3]), np.array([1.0, 2.0, 3.0]))
        assert one.shared("private").state.model.table.tolist() == table.tolist()


def test_no_item_leans_on_others_in_the_first_model_and_none_that_it_knew() -> None:
    policy, catalogue = following(("a", "red"), ("b", "blue"), ("c", "red"))
    means, variances = released(0.1, 0.2)
    for version in (1, 2):
        policy.adopt("private", version, means, variances, np.array([0.1]), np.array([1.0, 2.0, 3.0]))
        table = policy.shared("private").state.model.table
        assert np.allclose(table.T, np.concatenate([means, variances]))
    # Another item in a row that leaned leans anew, on those that the model knows.
    take(policy, catalogue, "c", offered=False)
    take(policy, catalogue, "d", "blue")
    policy.adopt("private", 3, means, variances, np.array([0.1]), np.array([1.0, 2.0, 5.0]))
    table = policy.shared("private").state.model.table
    assert np.abs(table[1:, 2]).max() < 0.15
    assert max(spread_of(policy, 2)[1:]) < 0.2, "less than as released"


def test_an_item_without_features_starts_from_the_mean_of_all_and_as_uncertain_as_they_differ() -> None:
    policy, catalogue = following(("a", "red"), ("b", "blue"))
    adopt(policy, [0.4, 0.1, 9.0], [1, 2, 0])
    take(policy, catalogue, "c")
    table = policy.shared("private").state.model.table
    assert table[0, 2] == pytest.approx(0.25)
    assert table[0, ROWS + 2] == pytest.approx(0.01 + 0.15**2)


@pytest.mark.parametrize("items", [29, 30])
def test_from_thirty_items_on_features_shape_the_model_and_no_row_leans_on_others(items: int) -> None:
    """Red items are clicked twice as often. The last one, a red one of few slots, is expected to be like them."""
    system, catalogue = system_of(items), Catalogue(system_of(items).catalogue_rules)
    policy, totals = system.policy(), FeatureTotals(system)
    assert isinstance(policy, FeaturePolicy)
    policy.follow(catalogue)
    made = []
    for number in range(items):
        colour = "red" if number % 2 or number == items - 1 else "blue"
        policy.entered(
            catalogue.take(ItemChange(str(number), number + 1, True, "", f'{{"colour": "{colour}"}}'), 0).row
        )
        if number < items - 2:
            continue
        shown = np.full((items, LAYOUT.cells), 200_000)
        shown[items - 1] = 400
        ones = np.rint(shown * np.where(np.arange(items) % 2, 0.2, 0.1)[:, None]).astype(np.int64)
        window = {**system.form.domain, **ItemRows.of(catalogue)._asdict(), "variance": 1e6, "slots": 20}
        window |= {"ones": ones.tobytes(), "zeros": (shown - ones).tobytes(), "private_as_stated": True}
        assert totals.add(window)
        assert not totals.add({**window, "features": window["features"][1:]})
        again = FeatureTotals(system)
        again.load(totals.dump())
        found = again.model()
        assert found.fields() == totals.model().fields()
        entries = np.frombuffer(found.entries, "<i4").astype(np.float64)
        start = found.start
        policy.adopt("private", number, start.means, start.variances, np.array([start.reward_variance]), entries)
        made.append(start.means.astype(np.float32))
    reds, blues, last = made[1][1:-1:2, 0].mean(), made[1][:-1:2, 0].mean(), made[1][-1, 0]
    assert (abs(last - reds) < abs(last - blues)) == (items == 30)
    table = policy.shared("private").state.model.table
    assert np.array_equal(table[:, items - 1], made[1][-1]) == (items == 30)
