"""A deployment's own log as a table: which decisions have a row, and that what is judged by it is the truth."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from typing import Any

import numpy as np
import pytest
from described import described

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.client import Client, Item
from hushstream.engine.catalogue import Cap, CatalogueFull
from hushstream.engine.configuration import ExplorationConfig
from hushstream.engine.records import InputRecord
from hushstream.features.schema import declare as declare_features
from hushstream.ops.decision_table import MAPPING, TABLE, decision_table
from hushstream.ops.log_copy import LogCopy, whole
from hushstream.replay.logged.evaluate import policy_values
from hushstream.replay.logged.log import LoggedDataset
from hushstream.replay.logged.mapping import table_mapping
from hushstream.replay.logged.table import stream_table
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.models import ExportedModel
from hushstream.systems.p2b.system import declare
from recordings import KEYS, Loop

pytestmark = pytest.mark.slow

COUNTRY = {"country": {"kind": "category", "vocabulary": ["de", "fr"]}}
HALF = ExplorationConfig("epsilon", share=0.5)
CLICKS = np.array(
    [[0.1, 0.5, 0.3, 0.2, 0.4], [0.6, 0.2, 0.3, 0.1, 0.4], [0.3, 0.3, 0.3, 0.7, 0.1], [0.2, 0.4, 0.6, 0.3, 0.2]]
)
"""The world: the chance of a click, by context and arm."""
TARGET = np.array([1, 0, 3, 2])
"""The policy to be judged: an arm for each context."""
TRUTH = float(CLICKS[np.arange(4), TARGET].mean())


def logs_of(rig: Any) -> LogCopy:
    """Contexts, clicks and decisions of a rig, as an export holds them."""
    journal = [InputRecord(offset, rig.now_ms, value) for offset, value in enumerate((rig.genesis, *rig.journal))]
    return LogCopy({source: whole(records) for source, records in {**rig.logs, ("decisions", 0): journal}.items()})


def live(rigs: Any, seed: int, decisions: int, exploration: ExplorationConfig = HALF) -> Any:
    """A deployment's life: twelve users, who learn while they go; clicks as the world gives them."""
    rng = np.random.default_rng(seed)
    system = rigs.make_system(exploration=exploration)
    rig, batch = rigs.LearnerRig(system, rigs.seeded_key(seed, "edge")), 24
    for first in range(0, decisions, batch):
        asked = [(f"e{number}", f"user-{number % 12}", int(rng.integers(4))) for number in range(first, first + batch)]
        for event_id, user, kind in asked:
            rig.context(event_id, user, rigs.point(kind))
        arms = rig.fold().arms
        rig.wait(1.0)
        for event_id, user, kind in asked:
            rig.shown(event_id, arms[event_id], user)
            if rng.random() < CLICKS[kind, arms[event_id]]:
                rig.reward(event_id, arms[event_id], 1.0, user)
        rig.wait(1.0)
    rig.wait(60.0)
    rig.context("last", "user-0", rigs.point(0))
    rig.fold()
    return rig


def judged(rig: Any) -> dict[str, Any]:
    """What each estimator says of the target, with a model of rewards that is wrong on purpose: DR must mend it."""
    table = decision_table(logs_of(rig), declare(rig.system))
    contexts = np.array([context.features["context"] for context, *_ in table.rows])
    chosen = np.array([answer.arm for _, answer, *_ in table.rows])
    log = LoggedDataset(
        name="own",
        arms=5,
        users=np.array([str(context.user) for context, *_ in table.rows]),
        timestamps_ms=np.array([context.time_ms for context, *_ in table.rows]),
        **described(contexts),
        chosen=chosen,
        rewards=np.array([reward for *_, reward in table.rows]),
        propensities=np.array([answer.propensity for _, answer, *_ in table.rows]) / 1e9,
        internal=True,
    )
    target = np.eye(5)[TARGET[contexts.argmax(axis=1)]]
    return {one.estimator: one for one in policy_values(log, target, np.full((len(log), 5), 0.35))}


def covered(rigs: Any, runs: int, decisions: int, exploration: ExplorationConfig) -> dict[str, int]:
    """In how many runs the truth lies within the 95 % interval."""
    found = dict.fromkeys(("ips", "snips", "dr"), 0)
    for seed in range(runs):
        values = judged(live(rigs, seed, decisions, exploration))
        for name in found:
            low, high = values[name].interval
            found[name] += low <= TRUTH <= high
    return found


def test_the_truth_lies_within_the_interval_of_a_deployments_own_log(rigs):
    """Twelve runs of 480 decisions: eight covered at least (of honest 95 % intervals fewer have a chance of 2e-4).

    A log that states twice the chances of what it drew beside the best arm is covered in none to three.
    """
    found = covered(rigs, 12, 480, HALF)
    assert min(found.values()) >= 8, found


@pytest.mark.slow_statistics
def test_of_200_own_logs_95_percent_cover_the_truth(rigs):
    """Between 183 and 199 of 200: honest 95 % intervals miss that with a chance of .013, those of 88 % in 19 of 20
    cases. Runs are seeded, so this has one outcome (190, 190, 189); learners adapt to rewards all the while."""
    for name, runs in covered(rigs, 200, 480, HALF).items():
        assert 183 <= runs <= 199, name


def test_a_propensity_that_is_stated_and_not_drawn_is_seen(rigs, monkeypatch):
    """Greedy choices that state the chances of the mixture: of 960 decisions IPS holds the truth in none of six runs.

    Of 480, as many as the quick test has, in two of six, so it fails there, too.
    """
    from hushstream.systems.p2b.edge import agent

    honest = agent.draw
    monkeypatch.setattr(
        agent, "draw", lambda weights, _: honest(weights, int(np.cumsum(weights)[weights.argmax()]) - 1)
    )
    assert covered(rigs, 6, 960, HALF)["ips"] <= 1


def test_what_was_not_drawn_or_not_seen_has_no_row(rigs):
    rig = rigs.LearnerRig(rigs.make_system(users={"contexts_per_period": 5}))
    for event_id in ("rewarded", "shown", "other", "unseen", "late", "over-quota"):
        rig.context(event_id, "ann")
    arms = rig.fold().arms
    rig.context("rewarded", "ann")
    rig.wait(1.0)
    rig.reward("rewarded", arms["rewarded"])
    rig.reward("rewarded", arms["rewarded"], 0.0)
    rig.shown("shown", arms["shown"])
    rig.shown("other", (arms["other"] + 1) % 5)
    rig.wait(30.0)
    rig.reward("late", arms["late"])
    rig.context("too-new", "bob")
    seen = rig.fold().arms
    rig.reward("too-new", seen["too-new"], 1.0, "bob")
    rig.fold()
    table = decision_table(logs_of(rig), declare(rig.system))
    assert [(answer.event_id, reward) for _, answer, _, reward in table.rows] == [("rewarded", 1.0), ("shown", 0.0)]
    assert table.left_out == {
        "another arm on screen": 1,
        "never shown": 2,
        "answered as baseline": 1,
        "answered as repeated": 1,
        "reward could still come": 1,
    }


def test_the_files_are_read_by_evaluate_marked_internal_and_the_owners_alone(rigs, tmp_path):
    rig = live(rigs, 1, 48)
    table = decision_table(logs_of(rig), declare(rig.system))
    table.write(tmp_path / "own")
    mapping = table_mapping(tmp_path / "own" / MAPPING)
    assert mapping.data == "internal"
    assert (tmp_path / "own" / MAPPING).read_text(encoding="utf-8").startswith("# INTERNAL, NOT PRIVATE")
    (read,) = list(stream_table(tmp_path / "own" / TABLE, mapping))
    assert read.chosen.tolist() == [answer.arm for _, answer, *_ in table.rows]
    given = [context.features["context"] for context, *_ in table.rows]
    assert np.allclose(read.contexts, given, atol=1e-4)
    assert np.rint(read.propensities * 1e9).tolist() == [answer.propensity for _, answer, *_ in table.rows]
    assert not [name for name in set(read.users) if name.startswith("user-")], "no name leaves for a table"
    for name in (TABLE, MAPPING):
        assert stat.S_IMODE((tmp_path / "own" / name).stat().st_mode) == 0o600
    with pytest.raises(HushstreamError, match="new folder"):
        table.write(tmp_path / "own")
    with pytest.raises(HushstreamError, match="got none"):
        decision_table(LogCopy({}), declare(rig.system))


def started_from(*items: str) -> dict[str, tuple[str, str]]:
    """What a deployment is prepared from that begins with a model of these items, if there are any."""
    if not items:
        return {}
    schema, paid = declare_features(COUNTRY), {"epsilon_micro": 1, "delta_units": "0"}
    about = {"deployment": "before", "private_as_stated": True, "version": 1, "slots": 9.0, "reward_variance": 0.2}
    means = np.full((len(items), schema.cells + 1), 0.1)
    paid_twice = {"paid": {"which": paid, "zero_out": paid}}
    model = ExportedModel({**about, **paid_twice}, items, (), schema, means, means)
    return {"start": ("model.json", model.as_json().decode())}


@pytest.mark.parametrize("known", [(), ("b", "z")], ids=["begun with nothing", "begun with a model"])
def test_where_items_have_names_a_row_means_the_item_that_it_stood_for_then(tmp_path, known):
    """Of two items that had one row, each has its own decisions; eligible are those that were on offer."""
    values = {
        "system": "p2b",
        "deployment": "named",
        "items": {"capacity": 2, "named": True},
        "features": COUNTRY,
        "expected_slots": 40,
        "slot": {"after_interactions": 2, "period_seconds": 1.0},
        "release": {"form": "features", "sums": "fresh"},
        "feedback": {"settle_seconds": 1.0, "attribution_window_seconds": 2.0},
        "exploration": {"choice": "epsilon", "share": 0.5},
    }
    loop = Loop(prepare(tmp_path / "d", parse_config(values), started_from(*known), keys=KEYS))
    earned: dict[str, int] = {}

    async def visit(client: Client, number: int) -> None:
        decision = await client.decide(f"e{number}", f"u{number % 3}", {"country": "fr"}, timeout=None)
        assert decision.item is not None
        await client.shown(decision.event_id, decision.user, decision.item)
        await client.reward(decision.event_id, decision.user, decision.item, 1.0)
        earned[f"e{number}"] = ("a|1", "b", "c").index(decision.item)

    async def play() -> None:
        async with Client(loop.log_of(), rules=loop.system.requests) as client:
            await client.items.add_all([Item("a|1"), Item("b")])
            for number in range(10):
                await visit(client, number)
            await client.items.retire("b")
            for number in range(10, 200):
                await visit(client, number)
                with contextlib.suppress(CatalogueFull):
                    await client.items.add("c")
                    break
            for later in range(200, 240):
                await visit(client, later)

    asyncio.run(play())
    logs = LogCopy({source: whole(records) for source, records in loop.log.partitions()})
    table = decision_table(logs, loop.system)
    assert table.items == ("a|1", "b", "c")
    counted = [len(earned), *np.bincount([row.answer.arm for row in table.rows], minlength=3).tolist()]
    assert sum(counted[1:]) == len(table.rows) > 30
    assert [earned[row.answer.event_id] for row in table.rows] == [row.shown for row in table.rows]
    assert counted[2] > 0
    assert counted[3] > 0
    table.write(tmp_path / "table")
    mapping = table_mapping(tmp_path / "table" / MAPPING)
    assert mapping.arms == ("a|1", "b", "c")
    assert mapping.features == loop.system.requests.features
    rows = list(stream_table(tmp_path / "table" / TABLE, mapping))
    assert [visit for part in rows for visit in part.visits] == [{"country": "fr"}] * len(table.rows)
    seen = {tuple(np.flatnonzero(mask).tolist()) for part in rows for mask in part.eligible}
    assert {(0, 1), (0,), (0, 2)} <= seen <= {(0, 1), (0,), (0, 2)}


def test_pins_narrow_what_was_eligible_and_decisions_with_a_cap_in_reach_have_no_row(tmp_path):
    """Whether a capped item could be chosen depends on earlier shows, whatever was chosen."""
    values = {
        "system": "p2b",
        "deployment": "ruled",
        "items": {"capacity": 4, "named": True},
        "features": COUNTRY,
        "expected_slots": 40,
        "slot": {"after_interactions": 2, "period_seconds": 1.0},
        "release": {"form": "features", "sums": "fresh"},
        "feedback": {"settle_seconds": 1.0, "attribution_window_seconds": 2.0},
        "exploration": {"choice": "epsilon", "share": 0.5},
    }
    loop = Loop(prepare(tmp_path / "d", parse_config(values), keys=KEYS))

    async def play() -> None:
        async with Client(loop.log_of(), rules=loop.system.requests) as client:
            await client.items.add_all(
                [Item("a", cap=Cap(1, 60)), Item("b"), Item("c", pinned=True), Item("d", pinned=True)]
            )
            for number in range(80):
                eligible = (None, ["b", "c", "d"], ["a", "b"], ["b"])[number % 4]
                decision = await client.decide(f"e{number}", f"u{number}", {"country": "fr"}, eligible, timeout=None)
                await client.shown(decision.event_id, decision.user, decision.item or "")

    asyncio.run(play())
    table = decision_table(LogCopy({source: whole(records) for source, records in loop.log.partitions()}), loop.system)
    numbers = [sum(1 << entry for entry in one) for one in ((2, 3), (1,))]
    assert {int.from_bytes(row.context.eligible, "little") for row in table.rows} == set(numbers)
    assert {row.answer.propensity for row in table.rows if row.answer.arm == 1} == {10**9}
    assert {row.answer.propensity for row in table.rows if row.answer.arm > 1} == {500_000_000}, "two, equally good"
    assert table.left_out["an eligible item has a cap"] > 30
