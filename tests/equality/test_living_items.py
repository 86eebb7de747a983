"""Items that come and go while workers decide, on the embedded broker: related users share one catalogue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.client import Client, Item
from hushstream.client.logs import EventLog
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.replay.runners.playing import Place, play
from hushstream.systems.colin.deployment import inputs_of
from hushstream.systems.colin.relation import SocialGraph
from patience import patience

pytestmark = [pytest.mark.slow]

USERS = ("ann", "bob", "eve")
FACES = {"boots": [0.5, 0.0], "socks": [0.0, 0.5], "scarf": [0.3, 0.3]}
VALUES = {
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


async def test_items_are_withdrawn_and_offered_while_workers_decide_and_all_follows_from_the_logs(tmp_path):
    graph = SocialGraph.of_edges([("ann", "bob", 1.0), ("bob", "eve", 1.0)], list(USERS))
    system = prepare(tmp_path, parse_config(VALUES), inputs_of(graph), public_dataset="made up")
    found: set[Shown] = set()

    async def player(log: EventLog) -> None:
        async with Client(log, rules=system.requests) as client:
            await client.items.add_all([Item("boots"), Item("socks")])
            offered = ["boots", "socks"]
            visitors = [asyncio.create_task(visit(client, user, offered, found)) for user in USERS]
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
