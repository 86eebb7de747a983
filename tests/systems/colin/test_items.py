"""Items by name in a collaborative deployment: the same catalogue and words as everywhere, on the direct runner."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.client import Client, Item
from hushstream.engine.catalogue import CatalogueFull, RepeatedItem, UnknownItem
from hushstream.engine.declare.requests import BadContext, RequestRefused, UnknownArm
from hushstream.engine.values import ConfigurationError
from hushstream.gateway.conversation.translation import Translation
from hushstream.gateway.problems import Problem
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.ops.decision_table import decision_table
from hushstream.ops.log_copy import LogCopy, whole
from hushstream.schemas import codec
from hushstream.systems.colin.deployment import inputs_of
from hushstream.systems.colin.relation import SocialGraph
from recordings import KEYS, Loop

FACES: Mapping[str, Sequence[float]] = {"a": [0.5, 0.0], "b": [0.0, 0.5], "c": [0.3, 0.3]}


def loop_of(folder: Path, named: bool = True) -> Loop:
    values = {
        "system": "colin",
        "deployment": "club",
        "items": {"capacity": 3, "named": named},
        "features": {"dimension": 2},
        "feedback": {"settle_seconds": 3.0, "attribution_window_seconds": 3.0},
        "privacy": {"units_per_person": 100},
        "release": {"window_units": 4},
    }
    graph = SocialGraph.of_edges([("ann", "bob", 1.0)], ["ann", "bob"])
    return Loop(prepare(folder, parse_config(values), inputs_of(graph), keys=KEYS))


def played(loop: Loop, play: Callable[[Client], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Client(loop.log_of(), rules=loop.system.requests) as client:
            return await play(client)

    return asyncio.run(run())


def fields_of(loop: Loop, topic: str, schema: str) -> list[Mapping[str, Any]]:
    records = (codec.decode(record.value) for record in loop.log.slice(topic, 0, 0).records)
    return [fields for name, fields in records if name == schema]


def test_decisions_name_items_and_rows_of_released_sums_have_their_features(tmp_path):
    loop = loop_of(tmp_path)
    shown: Counter[str] = Counter()

    async def play(client: Client) -> None:
        await client.items.add_all([Item(name, name.upper()) for name in FACES])
        for number in range(24):
            user = ("ann", "bob")[number % 2]
            decision = await client.decide(f"e{number}", user, FACES, timeout=None)
            assert decision.item is not None
            assert (decision.catalogue, FACES[decision.item]) == (1, FACES[decision.item])
            shown[decision.item] += 1
            await client.shown(f"e{number}", user, decision.item)
            await client.reward(f"e{number}", user, decision.item, 1.0)
        await client.end_phase(0)

    played(loop, play)
    rows = [
        tuple(row)
        for release in fields_of(loop, "releases", "Release")
        for row in np.frombuffer(release["contexts"], "<f4").reshape(-1, 2).round(3).tolist()
    ]
    assert Counter(rows) == {tuple(map(float, np.float32(FACES[item]).round(3))): n for item, n in shown.items()}


def test_only_items_that_a_context_describes_and_that_are_offered_are_shown(tmp_path):
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        await client.items.add_all([Item(name) for name in FACES])
        some = {name: FACES[name] for name in ("b", "c")}
        seen = {(await client.decide(f"e{number}", "ann", some, timeout=None)).item for number in range(8)}
        assert seen <= {"b", "c"}
        one = await client.decide("f", "ann", FACES, eligible=["b"], timeout=None)
        assert one.item == "b"
        await client.items.retire("b")
        assert (await client.decide("g", "ann", some, timeout=None)).item == "c"
        # What was decided before keeps its name and its feedback.
        await client.reward("f", "ann", "b", 1.0)
        slate = await client.rank("s", "ann", {"a": FACES["a"], "c": FACES["c"]}, 3, timeout=None)
        assert sorted(str(one.item) for one in slate) == ["a", "c"]

    played(loop, play)
    assert not fields_of(loop, "dead-letters-edge", "DeadLetter")


def test_a_row_has_another_item_when_no_decision_of_its_last_one_waits(tmp_path):
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        await client.items.add_all([Item(name) for name in FACES])
        first = await client.decide("first", "ann", {"c": FACES["c"]}, timeout=None)
        await client.items.retire("c")
        number = 0
        while True:
            number += 1
            await client.decide(f"e{number}", "ann", {"a": FACES["a"]}, timeout=None)
            try:
                await client.items.add("d")
                break
            except CatalogueFull:
                assert number < 500
        late = await client.decide("late", "ann", {"d": FACES["c"]}, timeout=None)
        assert (late.arm, late.item) == (first.arm, "d")
        assert number > 5
        # Nobody else is told that the first decision was for the item that has the row now.
        async with Client(loop.log_of(), rules=loop.system.requests) as other:
            with pytest.raises(RequestRefused):
                await other.decide("first", "ann", {"d": FACES["c"]}, timeout=None)

    played(loop, play)


def test_a_table_of_decisions_has_features_by_item_and_not_by_row(tmp_path):
    """Items c and d had one row; each has columns of its own, 0 in contexts that did not describe it."""
    loop, faces = loop_of(tmp_path), {**FACES, "d": [0.2, 0.4]}
    asked: dict[str, set[str]] = {}

    async def visit(client: Client, event: str, *items: str) -> None:
        decision = await client.decide(event, "ann", {item: faces[item] for item in items}, timeout=None)
        assert decision.item is not None
        asked[event] = set(items)
        await client.shown(event, "ann", decision.item)
        await client.reward(event, "ann", decision.item, 1.0)

    async def play(client: Client) -> None:
        await client.items.add_all([Item(name) for name in FACES])
        for number in range(6):
            await visit(client, f"c{number}", "b", "c")
        await client.items.retire("c")
        for number in range(500):
            await visit(client, f"e{number}", "a")
            with contextlib.suppress(CatalogueFull):
                await client.items.add("d")
                break
        for number in range(20):
            await visit(client, f"d{number}", "d", "a")

    played(loop, play)
    logs = LogCopy({source: whole(records) for source, records in loop.log.partitions()})
    table = decision_table(logs, loop.system)
    assert table.items == ("a", "b", "c", "d")
    seen: set[str] = set()
    for context, answer, _, _ in table.rows:
        described = np.reshape(context.features["context"], (4, 2))
        seen |= asked[answer.event_id]
        for item, numbers in zip(table.items, described.tolist(), strict=True):
            assert numbers == pytest.approx(faces[item] if item in asked[answer.event_id] else [0.0, 0.0], abs=1e-6)
    assert seen == {"a", "b", "c", "d"}


def test_bad_contexts_and_items_are_refused_at_the_client(tmp_path):
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        await client.items.add_all([Item(name) for name in ("a", "b")])
        bad: Sequence[tuple[Any, str]] = (
            ([0.1] * 6, "the features of each item that may be shown, by its id"),
            ({}, "of one item at least"),
            ({"a": [0.1]}, "2 numbers for each item, got 1"),
            ({"a": [float("nan"), 0.1]}, "finite numbers"),
            ({"a": "red"}, "a vector of numbers"),
            ({"a": None}, "finite numbers"),
            ({"a": [3.0, 0.0]}, "within the length bounds"),
        )
        for context, words in bad:
            with pytest.raises(BadContext, match=words) as caught:
                await client.decide("bad", "ann", context, timeout=None)
            assert len(str(caught.value)) < 250
        for unknown in ("nothing like it", "x" * (1 << 20)):
            with pytest.raises(UnknownArm, match="got another id"):
                await client.decide("bad", "ann", {unknown: [0.1, 0.1]}, timeout=None)
        with pytest.raises(UnknownArm, match="got a number"):
            await client.decide("bad", "ann", {0: [0.1, 0.1]}, timeout=None)
        with pytest.raises(UnknownArm, match="whose features the context has"):
            await client.decide("bad", "ann", {"a": [0.1, 0.1]}, eligible=["b"], timeout=None)
        with pytest.raises(RepeatedItem):
            await client.items.add("a")
        with pytest.raises(UnknownItem):
            await client.items.retire("c")
        with pytest.raises(Exception, match=r"items\.features"):
            await client.items.add("c", features={"colour": "red"})
        await client.items.retire("a")
        with pytest.raises(RequestRefused):
            await client.decide("none", "ann", {"a": [0.1, 0.1]}, timeout=None)

    played(loop, play)
    assert [one["reason"] for one in fields_of(loop, "dead-letters-edge", "DeadLetter")] == ["nothing_offered"]


def test_a_gateway_takes_features_by_item_and_says_how_many_each_has(tmp_path):
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        await client.items.add_all([Item(name) for name in FACES])
        words = Translation(loop.system.requests, client.items)
        asked = {"a": [0.5, 0.0], "b": [0.0, 0.5]}
        context, stands_for, _ = words.situation(asked)
        assert context == asked
        assert stands_for == words.situation(dict(reversed(asked.items())))[1]
        assert words.eligible(None, asked) == ["a", "b"]
        assert words.eligible(["b"], asked) == ["b"]
        assert words.schema()["context"]["numbers_of_each_item"] == 2
        with pytest.raises(Problem):
            words.eligible([0], asked)

    played(loop, play)


def test_without_names_arms_are_numbers_as_before(tmp_path):
    loop = loop_of(tmp_path, named=False)

    async def play(client: Client) -> None:
        decision = await client.decide("e", "ann", [0.1] * 6, eligible=[1], timeout=None)
        assert (decision.arm, decision.item, decision.catalogue) == (1, None, 0)
        with pytest.raises(BadContext, match="items have no names here"):
            await client.decide("f", "ann", FACES, timeout=None)
        with pytest.raises(RequestRefused, match=r"items\.named"):
            await client.items.add("a")

    played(loop, play)
    assert "items" not in {topic for (topic, _), _ in loop.log.partitions()}


def test_names_are_asked_for_by_true_or_false():
    values = {"system": "colin", "deployment": "club", "features": {"dimension": 2}}
    with pytest.raises(ConfigurationError, match=r"items\.named"):
        parse_config({**values, "items": {"capacity": 3, "named": "sure"}})


def test_a_club_whose_items_came_and_went_is_verified_and_a_changed_catalogue_is_found(tmp_path):
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        await client.items.add_all([Item(name) for name in FACES])
        for number in range(24):
            user, event = ("ann", "bob")[number % 2], f"e{number}"
            decision = await client.decide(event, user, FACES, timeout=None)
            assert decision.item is not None
            await client.shown(event, user, decision.item)
            await client.reward(event, user, decision.item, float(number % 3 == 0))
            if number == 12:
                await client.items.retire("b")
        await client.end_phase(0)

    played(loop, play)
    parts = {source: whole(records) for source, records in loop.log.partitions()}
    found = verify(LogCopy(parts), loop.system, KEYS)
    assert found.ok, found.findings
    assert found.of("releases")[Status.EQUAL] >= 1
    kept = parts["items", 0].records[:-1]
    changed = verify(LogCopy({**parts, ("items", 0): whole(kept)}), loop.system, KEYS)
    assert not changed.ok
