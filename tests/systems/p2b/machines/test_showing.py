"""Caps and pins: what may be chosen, with which propensity, and that no public record tells of what was shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.client import Client, Item
from hushstream.client.decisions import Decision
from hushstream.engine.catalogue import BadItem, Cap, Catalogue, CatalogueRules, ItemChange
from hushstream.engine.values import ConfigurationError
from hushstream.features.schema import declare
from hushstream.replay.runners.direct import DirectDriver
from hushstream.schemas import codec
from hushstream.systems.p2b.edge.agent import NOTHING_SHOWN, EdgeAgent, Shown, narrowed, noted
from hushstream.systems.p2b.edge.users import CAPPED_STATE, FEATURE_STATE, pack_agent, unpack_agent
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.models import ExportedModel
from recordings import KEYS, NONCE, Loop

VALUES: dict[str, Any] = {
    "system": "p2b",
    "deployment": "ruled",
    "items": {"capacity": 3, "named": True},
    "features": {"country": {"kind": "category", "vocabulary": ["de", "fr", "se"]}},
    "expected_slots": 40,
    "slot": {"after_interactions": 6, "period_seconds": 10.0},
    "release": {"form": "features", "window_units": 2, "sums": "fresh"},
    "feedback": {"settle_seconds": 2.0, "attribution_window_seconds": 2.0},
}
VISIT = {"country": "fr"}
PREFERRED = ("socks", "boots")
LONG = Cap(2, 3600)


def loop_of(folder: Path, **changes: Any) -> Loop:
    """A deployment that begins with a model which prefers socks to boots, and boots to all others."""
    schema, paid = declare(VALUES["features"]), {"epsilon_micro": 1, "delta_units": "0"}
    about = {"deployment": "before", "private_as_stated": True, "version": 1, "slots": 9.0, "reward_variance": 0.2}
    about |= {"paid": {"which": paid, "zero_out": paid}}
    means = np.array([[mean, *[0.0] * schema.cells] for mean in (0.9, 0.5)])
    start = ExportedModel(about, PREFERRED, (), schema, means, np.full_like(means, 1e-6))
    inputs = {"start": ("model.json", start.as_json().decode())}
    return Loop(prepare(folder / "shop", parse_config({**VALUES, **changes}), inputs, KEYS))


def played(loop: Loop, play: Callable[[Client], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Client(loop.log_of(), rules=loop.system.requests) as client:
            return await play(client)

    return asyncio.run(run())


async def ask(client: Client, event: str, user: str, **asked: Any) -> Decision:
    return await client.decide(event, user, VISIT, timeout=None, track="private", **asked)


async def visit(client: Client, event: str, user: str, **asked: Any) -> str:
    """A visit whose item is shown."""
    decision = await ask(client, event, user, **asked)
    assert decision.item is not None
    await client.shown(event, user, decision.item)
    return decision.item


def asked_ms(loop: Loop) -> dict[str, int]:
    """The log time of each request."""
    records = loop.log.slice("contexts", 0, 0).records
    return {codec.decode(one.value)[1]["event_id"]: one.timestamp_ms for one in records}


def agent_of(loop: Loop, user: str) -> EdgeAgent:
    """A user's agent in a learner that replayed its journal."""
    machines = all_machines(loop.system, KEYS)
    DirectDriver(loop.log, machines, NONCE)
    (learner,) = (one for one in machines if isinstance(one, LearnerMachine))
    found = learner.agents.get(user)
    assert found is not None
    return found


def refused(loop: Loop) -> int:
    return len(loop.log.slice("dead-letters-edge", 0, 0).records)


def test_an_item_is_shown_as_often_as_its_cap_allows_and_then_again(tmp_path: Path) -> None:
    """The preferred item is shown whenever its cap allows it, to each user by their own shows, and never else."""
    loop, cap = loop_of(tmp_path), Cap(2, 5)

    async def play(client: Client) -> list[tuple[str, str, str]]:
        await client.items.add_all([Item("socks", cap=cap), Item("boots")])
        plan = [(f"{number}-{user}", user) for number in range(14) for user in ("ann", "bob")]
        return [(event, user, await visit(client, event, user)) for event, user in plan]

    seen = played(loop, play)
    times, shows = asked_ms(loop), dict[str, list[int]]()
    for event, user, item in seen:
        recent = [at for at in shows.setdefault(user, []) if at > times[event] - 1000 * cap.within_seconds]
        assert item == ("socks" if len(recent) < cap.shows else "boots"), event
        if item == "socks":
            shows[user].append(times[event])
    assert all(len(times) > 2 * cap.shows for times in shows.values()), "the cap ended, and the item came again"
    assert {item for _, _, item in seen} == {"socks", "boots"}
    assert not refused(loop)


def test_decisions_that_wait_count_until_their_wait_is_over(tmp_path: Path) -> None:
    """Requests at once do not pass the cap; what was never shown counts no longer."""
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        await client.items.add_all([Item("socks", cap=LONG), Item("boots")])

        async def at_once(turn: str, user: str) -> int:
            found = await asyncio.gather(*(ask(client, f"{turn}{number}", user) for number in range(5)))
            return sum(one.item == "socks" for one in found)

        assert await at_once("a", "ann") == LONG.shows
        for number in range(10):
            assert await visit(client, f"later{number}", "bob", eligible=["boots"]) == "boots"
        assert await at_once("b", "ann") == LONG.shows, "their wait is over, and nothing of it was shown"
        await client.reward("b0", "ann", "socks", 1.0)
        await client.shown("b2", "ann", "socks")
        for number in range(10, 20):
            await visit(client, f"later{number}", "bob")
        assert await at_once("c", "ann") == 0, "a reward says that its item was shown; so was another item in b2"

    played(loop, play)


def test_a_capped_item_is_not_among_those_that_propensities_are_over(tmp_path: Path) -> None:
    """Over two of three items: half of the choices are drawn, and each draw is one of the two."""
    loop = loop_of(tmp_path, exploration={"choice": "epsilon", "share": 0.5})

    async def play(client: Client) -> tuple[list[Decision], list[Decision]]:
        await client.items.add_all([Item("socks", cap=LONG), Item("boots"), Item("hats")])
        for number in range(LONG.shows):
            await visit(client, f"a{number}", "ann", eligible=["socks"])
        over_three = [await ask(client, f"b{number}", f"new-{number}") for number in range(40)]
        return over_three, [await ask(client, f"c{number}", "ann") for number in range(40)]

    over_three, over_two = played(loop, play)
    third = 500_000_000 // 3 / 1e9
    assert {one.item for one in over_three} == {"socks", "boots", "hats"}
    assert {one.propensity for one in over_three if one.item != "socks"} == {third}
    assert {one.item for one in over_two} == {"boots", "hats"}
    assert {one.propensity for one in over_two} == {0.25, 0.75}


def test_a_pinned_item_is_certain_where_it_is_allowed_and_below_its_cap(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, exploration={"choice": "epsilon", "share": 0.5})

    async def play(client: Client) -> None:
        await client.items.add_all([Item("socks"), Item("boots"), Item("news", pinned=True, cap=LONG)])
        for number in range(LONG.shows):
            found = await ask(client, f"a{number}", "ann")
            assert (found.item, found.propensity, found.policy) == ("news", 1.0, "model")
            await client.shown(found.event_id, "ann", "news")
        seen = {(await ask(client, f"b{number}", "ann")).item for number in range(30)}
        assert seen == {"socks", "boots"}
        allowed = {(await ask(client, f"c{number}", "bob", eligible=["socks", "boots"])).item for number in range(30)}
        assert allowed == {"socks", "boots"}
        await client.items.put([Item("boots", pinned=True)])
        among = [await ask(client, f"d{number}", f"u{number}") for number in range(30)]
        assert {one.item for one in among} == {"boots", "news"}, "of several pinned items the learner chooses"
        assert {one.propensity for one in among} == {0.25, 0.75}
        await client.items.put([Item("boots")], retire=["news"])
        assert {(await ask(client, f"e{number}", f"v{number}")).item for number in range(30)} == {"socks", "boots"}

    played(loop, play)
    assert not refused(loop)


def public(loop: Loop) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """What everybody outside of the edge zone sees of each record without reading it: its time, and a slot's size."""
    zones = {topic.name: topic.zone for topic in loop.system.topics}
    return {
        place: [(one.timestamp_ms, len(one.value) if place[0] == "reports" else 0) for one in records]
        for place, records in loop.log.partitions()
        if zones[place[0]] != "edge"
    }


def test_no_public_record_comes_or_stays_away_by_what_was_shown(tmp_path: Path) -> None:
    """Neighbours: of one user other items are shown, until all are at their caps; the records of both are as many.

    The number of a user's decisions says when their slot is sent. So a request whose items are all at their caps is
    answered all the same. The contents of slots differ, which their mechanism hides.
    """

    def loop_with(folder: Path, shown: tuple[str, ...]) -> tuple[Loop, list[str | None]]:
        loop = loop_of(folder)

        async def play(client: Client) -> list[str | None]:
            await client.items.add_all([Item("socks", cap=LONG), Item("boots", cap=LONG)])
            found = []
            for turn in range(8):
                for user in ("ann", "bob", "cid", "dan"):
                    decision = await ask(client, f"{turn}-{user}", user)
                    item = shown[turn % len(shown)] if user == "ann" else decision.item
                    await client.shown(decision.event_id, user, item or "")
                    found += [decision.item] if user == "ann" else []
            for turn in range(40):
                await ask(client, f"later-{turn}", f"eve-{turn}")
            return found

        return loop, played(loop, play)

    (one, of_one), (other, of_other) = (
        loop_with(tmp_path / name, items) for name, items in (("a", ("socks",)), ("b", ("socks", "boots")))
    )
    assert of_one != of_other, "the choice follows what was shown"
    assert refused(one) == refused(other) == 0
    assert public(one) == public(other)
    assert len(public(one)["reports", 0]) >= 4
    assert len(public(one)["window-sums", 0]) >= 2


def test_the_applications_own_choice_stands_as_it_was_named(tmp_path: Path) -> None:
    """In the baseline group neither a cap nor a pin changes what is shown, nor which decisions are counted."""
    measurement = {"baseline": 0.5, "epsilon": 1.0, "decisions_per_user": 20}
    loop = loop_of(tmp_path, measurement=measurement)

    async def play(client: Client) -> set[tuple[str, str | None]]:
        await client.items.add_all([Item("socks", pinned=True), Item("boots", cap=LONG)])
        found = set()
        for turn in range(5):
            for number in range(12):
                decision = await ask(client, f"{turn}-{number}", f"u{number}", baseline="boots")
                await client.shown(decision.event_id, decision.user, decision.item or "")
                found.add((str(decision.policy), decision.item))
        return found

    assert played(loop, play) == {("baseline", "boots"), ("model", "socks")}


def test_a_user_packed_and_restored_remembers_what_they_were_shown(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)

    async def play(client: Client) -> None:
        await client.items.add_all([Item("socks", cap=LONG), Item("boots")])
        await visit(client, "a", "ann")
        await visit(client, "b", "bob", eligible=["boots"])

    played(loop, play)
    for user, tag in (("ann", CAPPED_STATE), ("bob", FEATURE_STATE)):
        agent = agent_of(loop, user)
        packed = pack_agent(agent.dump())
        fields = unpack_agent(packed)
        assert packed[:1] == tag, "only who was shown a capped item has the larger form"
        assert fields is not None
        restored = EdgeAgent.load(agent.terms, agent.user, fields, None, agent.decisions)
        assert restored.shows == agent.shows
        assert bool(restored.shows) == (user == "ann")
        restored.delete_state()
        assert not restored.shows


RULES = CatalogueRules(2, 0, bytes(16), ruled=True)
SOCKS = ItemChange("socks", 1, True, cap_shows=1, cap_seconds=60)


def catalogue_of(*changes: ItemChange) -> Catalogue:
    catalogue = Catalogue(RULES)
    for number, change in enumerate(changes):
        catalogue.take(change, 1_000_000 * number)
    return catalogue


def test_the_next_item_of_a_row_does_not_inherit_shows() -> None:
    shows = noted(NOTHING_SHOWN, catalogue_of(SOCKS), 0, 10)
    assert shows == {0: Shown(1, (10,))}
    hats = SOCKS._replace(item="hats", version=4)
    catalogue = catalogue_of(SOCKS, ItemChange("boots", 2, True), ItemChange("socks", 3, False), hats)
    assert catalogue.item("hats").row == 0
    assert narrowed(catalogue, catalogue.offered, shows, (), 11).tolist() == [True, True]
    assert noted(shows, catalogue, 0, 20) == {0: Shown(4, (20,))}


def test_no_more_shows_are_kept_than_caps_need() -> None:
    catalogue = catalogue_of(SOCKS._replace(cap_shows=2), SOCKS._replace(item="boots", version=2, cap_seconds=1))
    shows = noted(NOTHING_SHOWN, catalogue, 1, 500)
    for at_ms in (3_000, 1_000, 2_000, 4_000):
        shows = noted(shows, catalogue, 0, at_ms)
    assert shows == {0: Shown(1, (3_000, 4_000))}, "of boots the only show is older than its cap counts"


UNRULED = CatalogueRules(2, 0, bytes(16))
NO_CAPS = ((0, 5), (5, 0), (101, 5), (1, 366 * 86_400 + 1), (-1, 5), ("2", 5), (1.5, 5))


@pytest.mark.parametrize(
    ("rules", "change", "said"),
    [
        (UNRULED, {"pinned": True}, "expected no pin and no cap, as this deployment's items have none"),
        (
            UNRULED,
            {"cap_shows": 1, "cap_seconds": 1},
            "expected no pin and no cap, as this deployment's items have none",
        ),
        (RULES, {"pinned": "yes"}, "pinned: expected true or false"),
        *((RULES, {"cap_shows": one, "cap_seconds": other}, "cap: expected 1 to 100 shows") for one, other in NO_CAPS),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rules: CatalogueRules, change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadItem, match=said):
        Catalogue(rules).take(ItemChange("socks", 1, True)._replace(**change), 0)


def test_items_of_devices_have_no_names_and_so_no_rules() -> None:
    with pytest.raises(ConfigurationError, match=r"named 0, 1, 2, \.\.\. and stay, without caps and pins"):
        parse_config({**VALUES, "kind": "edge"})


def test_a_catalogue_packs_its_rules_and_without_rules_as_before() -> None:
    catalogue = catalogue_of(
        ItemChange("socks", 1, True, pinned=True, cap_shows=3, cap_seconds=60), ItemChange("boots", 2, True)
    )
    restored = Catalogue(RULES)
    restored.load(catalogue.dump())
    assert (restored.pinned.tolist(), restored.caps, restored.narrows) == ([True, False], {0: Cap(3, 60)}, True)
    assert restored.dump() == catalogue.dump()
    assert b'["boots","","",1,2,0,0]' in catalogue.dump()
    catalogue.take(ItemChange("socks", 3, False), 0)
    assert (catalogue.pinned.any(), catalogue.caps, catalogue.narrows) == (False, {}, False)
