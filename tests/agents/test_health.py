"""An outage is seen while it lasts: each fault moves the metric that its alert reads, and its end moves it back."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.health import StallTimer
from patience import Patience

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVENTS = [(1_000_000 + i, b"k%d" % (i % 5)) for i in range(20)]


def deployment(bench: Any, harness: Any, machines: Any, name: str, **settings: Any) -> Any:
    return harness.Deployment(
        bench, name, f"{machines.__file__}:counting", {"targets": 1}, machines.counting(targets=1),
        {("events", 0): EVENTS}, 1, {"schedule": "live", **settings},
    )  # fmt: skip


def values(port: int) -> dict[str, float]:
    """Each series of the public page, by the metric's name without its prefix."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = re.findall(r"^hushstream_(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def values_if_served(port: int) -> dict[str, float]:
    """The same, empty before the page is there."""
    try:
        return values(port)
    except urllib.error.URLError:
        return {}


async def shows(port: int, wanted: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Wait until the metrics are as wanted."""
    waiting = Patience(60)
    while not wanted(found := await asyncio.to_thread(values_if_served, port)):
        assert not waiting.over, found
        await asyncio.sleep(0.5)
    return found


def still(found: dict[str, float]) -> bool:
    """Whether the broker has just been heard, for all that is measured of it."""
    ages = ("fetch_age_seconds", "group_commit_age_seconds")
    return all(found.get(age) == 0 for age in ages)


async def test_a_broker_that_is_gone_is_seen_in_metrics_and_in_the_log_until_it_is_back(bench, harness, machines):
    port = harness.free_port()
    target = int(bench.bootstrap.rpartition(":")[2])
    async with harness.Tunnel(target) as tunnel, deployment(bench, harness, machines, "outage") as run:
        worker = await run.start(bootstrap=f"127.0.0.1:{tunnel.port}", metrics_port=port)
        await run.folded_all()
        await shows(port, still)
        tunnel.open = False
        tunnel.cut()
        await shows(port, lambda found: min(found["fetch_age_seconds"], found["group_commit_age_seconds"]) >= 5)
        await worker.logged("no broker has answered a fetch for")
        tunnel.open = True
        await worker.logged("brokers answer fetches again")
        await shows(port, still)
        await shows(port, lambda found: found["partitions_held"] == 1)
        worker.kill(signal.SIGTERM)
        await worker.exit_code()
    lines = worker.log.read_text(encoding="utf-8").count("no broker has answered")
    assert lines == 1, f"{lines} lines of one outage"


async def test_a_state_folder_that_takes_nothing_is_seen_and_so_is_the_room_on_its_disk(bench, harness, machines):
    port = harness.free_port()
    async with deployment(bench, harness, machines, "unsaved") as run:
        folder = Path(run.values["datadir"]) / run.values["deployment"]
        worker = await run.start(metrics_port=port)
        await run.folded_all()
        saved = folder / run.values["role"] / "0.snapshot"
        calm = await shows(port, lambda found: saved.exists() and "state_disk_free_ratio" in found)
        shutil.rmtree(folder)
        folder.write_bytes(b"")  # no folder can be made in its place
        await run.append({("events", 0): EVENTS})
        stale = await shows(port, lambda found: found.get("snapshot_age_seconds", 0) >= 5)
        worker.kill()
        await worker.exit_code()
    usage = shutil.disk_usage(folder.parent)
    assert calm["snapshot_age_seconds"] == 0
    assert stale["state_disk_free_ratio"] == pytest.approx(usage.free / usage.total, abs=0.05)
    assert stale["state_disk_free_ratio"] in [whole / 100 for whole in range(101)], "it tells no size of a state"
    assert stale["fetch_age_seconds"] == 0


async def test_a_partition_that_folds_nothing_of_what_waits_is_seen(bench, harness, machines):
    port = harness.free_port()
    logs = {("left", 0): [(1_000_000, machines.pack([1, 10**9]))], ("right", 0): [(999_000, b"0")]}
    run = harness.Deployment(
        bench, "dark", f"{machines.__file__}:joining", {}, machines.joining(), logs, 1,
        {"schedule": "live", "named_wait_seconds": 8}, {"rules": 1},
    )  # fmt: skip
    async with run:
        worker = await run.start(metrics_port=port)
        dark = await shows(port, lambda found: found.get("partition_dark_seconds", 0) >= 5)
        light = await shows(port, lambda found: found["partition_dark_seconds"] == 0)
        worker.kill(signal.SIGTERM)
        await worker.exit_code()
    assert dark["fetch_age_seconds"] == light["fetch_age_seconds"] == 0


async def test_what_is_folded_or_empty_is_not_dark(base):
    now = [base]
    seen = StallTimer()

    def after(seconds: float, folded_to: int, end: int) -> float:
        now[0] += seconds
        return round(seen.seconds(3, folded_to, end, now[0]), 3)

    assert [after(0, 0, 5), after(10, 0, 5), after(10, 0, 9)] == [0, 10, 20]
    assert [after(10, 1, 9), after(10, 1, 9), after(10, 9, 9), after(50, 9, 9)] == [0, 10, 0, 0]
    assert after(1, 9, 10) == 1
    seen.keep(set())
    assert after(5, 9, 10) == 0, "one that comes back begins anew"
