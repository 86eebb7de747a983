"""Items that come and go while workers decide, and a large catalogue in parts, on the embedded broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KEYS, KeySource, parse_config, prepare
from hushstream.client import Client, Item
from hushstream.client.logs import EventLog
from hushstream.engine.declare.role import key_names
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.privacy.keys import generate_keys
from hushstream.replay.runners.playing import Place, play
from hushstream.replay.runners.stream import StreamPlace, StreamSession
from hushstream.schemas import codec
from hushstream.systems.colin.deployment import inputs_of
from hushstream.systems.colin.relation import SocialGraph
from patience import Patience, patience

VISITORS = ("ann", "bob", "eve")
FACES = {"boots": [0.5, 0.0], "socks": [0.0, 0.5], "scarf": [0.3, 0.3]}
CLUB = {
    "system": "colin",
    "deployment": "club",
    "items": {"capacity": 4, "named": True},
    "features": {"dimension": 2},
    "feedback": {"settle_seconds": 1.0, "attribution_window_seconds": 1.0},
    "privacy": {"units_per_person": 10_000},
    "release": {"window_units": 8, "horizon": 10_000},
    "partitions": {"learner": 2},
}

Shown = tuple[int, str]
"""The version of the catalogue that a decision names, and its item."""


async def visit(client: Client, user: str, offered: Sequence[str], found: set[Shown]) -> None:
    """One user visits again and again, until cancelled, and names the features of all items on offer."""
    for number in count():
        event, known = f"{user}-{number}", {name: FACES[name] for name in offered}
        decision = await client.decide(event, user, known, timeout=None)
        assert decision.item is not None
        found.add((decision.catalogue, decision.item))
        await client.shown(event, user, decision.item)
        await client.reward(event, user, decision.item, float(decision.item == "scarf"))


async def until(shown: Shown, found: set[Shown], visitors: Sequence[asyncio.Task[None]]) -> None:
    """Until an item was shown under a version of the catalogue."""
    async with asyncio.timeout(patience(60.0)):
        while shown not in found:
            assert not any(visitor.done() for visitor in visitors)
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_items_are_withdrawn_and_offered_while_workers_decide_and_all_follows_from_the_logs(tmp_path):
    graph = SocialGraph.of_edges([("ann", "bob", 1.0), ("bob", "eve", 1.0)], list(VISITORS))
    system = prepare(tmp_path, parse_config(CLUB), inputs_of(graph), public_dataset="made up")
    found: set[Shown] = set()

    async def player(log: EventLog) -> None:
        async with Client(log, rules=system.requests) as client:
            await client.items.add_all([Item("boots"), Item("socks")])
            offered = ["boots", "socks"]
            visitors = [asyncio.create_task(visit(client, user, offered, found)) for user in VISITORS]
            await until((1, "boots"), found, visitors)
            assert await client.items.retire("boots") == 2
            await until((2, "socks"), found, visitors)
            assert await client.items.add("scarf", "A scarf") == 3
            # Nobody names it before it is there.
            offered.append("scarf")
            await until((3, "scarf"), found, visitors)
            for visitor in visitors:
                visitor.cancel()
            await asyncio.gather(*visitors, return_exceptions=True)

    recording = await play(system, Place("stream", tmp_path, None, 5), player)
    assert {item for version, item in found if version == 2} == {"socks"}
    assert found <= {(1, "boots"), (1, "socks"), (2, "socks"), (3, "socks"), (3, "scarf")}
    checked = verify(recording.logs, system, KeySource(seed=5))
    assert checked.ok, checked.findings
    assert checked.of("decisions")[Status.EQUAL] > 0
    assert checked.of("models")[Status.EQUAL] > 1


# 1,000 items of eight features on a broker: windows and versions in parts, while every worker is killed once.

ITEMS, CELLS, USERS, WINDOW = 1000, 83, 60, 20
VALUES: dict[str, Any] = {
    "deployment": "large",
    "items": {"capacity": ITEMS, "named": True},
    "features": {
        "country": {"kind": "category", "vocabulary": [f"country-{number}" for number in range(20)]},
        "device": {"kind": "category", "vocabulary": [f"device-{number}" for number in range(5)]},
        "channel": {"kind": "category", "vocabulary": [f"channel-{number}" for number in range(8)]},
        "age": {"kind": "number", "range": [16, 96]},
        "spend": {"kind": "number", "range": [1, 10_000], "scale": "log"},
        "tenure": {"kind": "number", "range": [0, 3650]},
        "likes": {"kind": "tags", "vocabulary": [f"tag-{number}" for number in range(12)], "most": 3},
        "hour": {"kind": "time_of_day"},
    },
    "expected_slots": USERS,
    "slot": {"after_interactions": 2},
    "release": {"form": "features", "window_units": WINDOW, "sums": "fresh"},
    "feedback": {"settle_seconds": 1.0, "attribution_window_seconds": 1.0},
}


@pytest.mark.process
@pytest.mark.slow
async def test_a_catalogue_of_1000_items_learns_in_parts_through_kills_of_every_worker(tmp_path):
    system = prepare(tmp_path, parse_config(VALUES))
    assert system.core.form.shape == (ITEMS, CELLS)
    assert system.core.form.parts == 2
    generate_keys(tmp_path / KEYS, key_names(system.roles))
    session = StreamSession(system, StreamPlace(tmp_path, None, None))
    async with session, Client(session.event_log(), rules=system.requests) as client:
        await client.items.add_all([Item(f"item-{number}") for number in range(ITEMS)])
        for start, victim in ((0, "shuffler"), (WINDOW, "aggregator"), (2 * WINDOW, "learner")):
            await asyncio.gather(*(_user(client, number) for number in range(start, start + WINDOW)))
            await session.kill(victim)
        answered = await _until_answered_by_a_model(client)
        logs = await session.logs()
    found = verify(logs, system, KeySource(tmp_path / KEYS))
    assert found.ok, found.findings
    sums, parts = (logs.part((topic, 0)).records for topic in ("window-sums", "model-parts"))
    windows = len([one for one in logs.part(("journal-shuffler", 0)).records if _name(one.value) == "WindowJournal"])
    assert windows >= 2
    assert len(logs.part(("ledger", 0)).records) >= windows
    for records in (sums, parts):
        sets = Counter((fields["whole"], fields["part"]) for fields in (codec.decode(one.value)[1] for one in records))
        assert len(sets) == 2 * windows
    assert answered >= 2


def _name(value: bytes) -> str:
    return codec.decode(value)[0]


def _context(number: int) -> dict[str, Any]:
    return {"country": f"country-{number % 20}", "age": 20 + number, "likes": ["tag-1"], "hour": number % 24}


async def _user(client: Client, number: int) -> None:
    for visit in range(2):
        event, user = f"{number}-{visit}", f"user-{number}"
        found = await client.decide(event, user, _context(number), timeout=None)
        assert found.item is not None
        await client.shown(event, user, found.item)
        await client.reward(event, user, found.item, 1.0)


async def _until_answered_by_a_model(client: Client) -> int:
    """The version that answers once two windows have come through; log time goes on with each who asks."""
    waits, number, version = Patience(120.0), USERS, 0
    while version < 2:
        assert not waits.over, f"answered by version {version}"
        number += 1
        asked = client.decide(f"{number}-0", f"user-{number}", _context(number), timeout=None)
        version = (await asked).model_version
        await asyncio.sleep(0.2)
    return version
