"""Many users: what is measured, the pauses that count, and the plan's arithmetic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hushstream.replay.bench import scale
from hushstream.replay.bench.gateway import Row, Servers
from hushstream.replay.bench.journal import Folded
from hushstream.replay.bench.scale import longest_pause, plan_rows, scale_rows, scale_tables

COSTS = {
    scale.CPU_RATE: (1_000.0, "interactions/CPU s"),
    scale.STATE: (500.0, "bytes/user"),
    scale.DISK: (300.0, "bytes/interaction"),
    scale.GATEWAY: (300_000.0, "CPU us/request"),
}


def test_a_pause_counts_only_while_records_wait() -> None:
    folded = [
        Folded(0, (0, 3), (0, 0), 3, b""),
        Folded(7, (3, 6), (0, 0), 3, b""),
        Folded(100, (0, 0), (0, 4), 0, b""),  # all contexts were folded: the clicks come when somebody appends them
        Folded(109, (0, 0), (4, 6), 0, b""),
        Folded(300, (6, 8), (0, 0), 2, b""),
    ]
    assert longest_pause(folded, 6) == 9
    assert longest_pause(folded, 100) == 191
    assert longest_pause(folded[:1], 6) == 0


def test_the_plan_follows_from_the_costs() -> None:
    found = {row.name: row.value for row in plan_rows(COSTS)}
    most = "plan, 100,000,000 users: "
    assert found[f"{most}interactions in the busiest second"] == pytest.approx(2777.8, abs=0.1)
    assert found[f"{most}partitions of the learner"] == 100
    assert found[f"{most}learner workers"] == 25  # by partitions; by CPU time 5
    assert found[f"{most}gateways"] == 1389  # 2777.8 requests at .3 s of a core that is 60 % busy
    assert found[f"{most}their state, on disk"] == pytest.approx(50)
    assert found[f"{most}brokers"] == 3
    assert found[f"{most}their disk"] == pytest.approx(90)
    slow = {row.name: row.value for row in plan_rows({**COSTS, scale.CPU_RATE: (10.0, "")})}
    assert slow[f"{most}learner workers"] == 463
    assert plan_rows({name: cost for name, cost in COSTS.items() if name != scale.DISK}) == []


@pytest.mark.process
def test_a_small_run_measures_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def deployed(*_: Any) -> AsyncIterator[Servers]:
        yield Servers((), {})

    async def measure(*_: Any) -> Row:
        return Row(250, 250, (0.01, 0.02), 0, {"gateway": 3e-4})

    monkeypatch.setattr(scale.gateway, "deployed", deployed)
    monkeypatch.setattr(scale.gateway, "measure", measure)
    monkeypatch.setattr(scale, "ROUNDS", 2)
    monkeypatch.setattr(scale, "PROBED", 5)
    rows = scale_rows(600, lambda _: None)
    assert all(row.value is not None and row.value >= 0 for row in rows)
    assert sum(row.name.startswith("scale, 600 users, 1,200 interactions, embedded broker: ") for row in rows) == 10
    tables = scale_tables(rows)
    assert "| gateway at 250 requests/s | 300 | CPU us/request |" in tables["scale"]
    assert "| partitions of the learner |  | 1 | 10 | 100 |" in tables["plan"]
