"""Time is passed in: a clock is read by who runs a loop or measures, and by nothing below."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hushstream.agents.partition.driver
from hushstream.agents.partition.named_waits import NamedWait
from hushstream.client.waiting import PROBE_SECONDS, SILENT_SECONDS, Circuit
from hushstream.engine.records import Awaited

AGENTS = Path(hushstream.agents.partition.driver.__file__).parents[2]

READS_A_CLOCK = {
    "agents/observe/metrics.py": "the default of a clock that is passed in",
    "agents/observe/rate_limited_log.py": "the default of a clock that is passed in; a logging filter is passed none",
    "agents/partition/tools.py": "the default of a clock that is passed in",
    "agents/recovery/state_topic.py": "the default of a clock that is passed in; and the wall clock, beside log time",
    "agents/security.py": "whether a certificate has ended by the wall clock",
    "agents/worker/homes.py": "runs recoveries and reloads",
    "agents/worker/preflight.py": "runs the loop that waits for brokers",
    "agents/worker/roles.py": "what gauges show by the wall clock, once a look",
    "agents/worker/health.py": "looks now and then, and hands down when",
    "agents/worker/worker.py": "runs the loop that watches the group",
    "ops/access/acls.py": "runs the loop that waits for brokers",
    "ops/audit/auditor.py": "runs the loop that follows the journals, and hands down when",
    "ops/audit/metrics.py": "its gauges' ages; who makes it may pass a clock",
}
"""Modules that import a clock, with the reason; an event loop's time is asked where a coroutine waits."""


def imports_a_clock(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            return True
    return False


def test_nothing_below_a_loop_reads_a_clock() -> None:
    found = {
        path.relative_to(AGENTS).as_posix()
        for folder in ("agents", "client", "ops")
        for path in (AGENTS / folder).rglob("*.py")
        if imports_a_clock(path)
    }
    assert found == set(READS_A_CLOCK)


async def test_a_named_record_is_waited_for_from_when_it_was_first_missed(base: float) -> None:
    asked: list[Any] = []

    async def end_offsets(sources: list[Any]) -> dict[Any, int]:
        asked.append(sources)
        return dict.fromkeys(sources, 5)

    told: list[tuple[int, int]] = []
    awaited = Awaited(3, ("clicks", 0), 9, 1)
    machine = SimpleNamespace(awaited=None, ends_at=lambda arrived, end: told.append((arrived, end)))
    metrics = SimpleNamespace(waited_in_vain=lambda: None)
    wait = NamedWait(machine, SimpleNamespace(next_offset=4), 2.0, end_offsets, metrics)  # type: ignore[arg-type]
    assert wait.awaited(base) is None
    assert wait.seconds_left(base) is None
    machine.awaited = awaited
    assert wait.awaited(base + 1.0) == awaited
    assert wait.awaited(base + 2.0) == awaited, "asked again it does not begin anew"
    assert wait.seconds_left(base + 2.0) == pytest.approx(1.0, abs=1e-5)
    assert not await wait.end(base + 2.5)
    assert not asked
    assert await wait.end(base + 3.5)
    assert (asked, told) == ([[("clicks", 0)]], [(4, 5)])


def test_nobody_answers_where_a_question_lies_for_too_long(base: float) -> None:
    circuit = Circuit()
    assert not circuit.is_open(base + 100.0), "nothing was asked"
    circuit.on_request(base)
    assert not circuit.is_open(base + SILENT_SECONDS / 2)
    late = base + 2 * SILENT_SECONDS
    assert circuit.is_open(late)
    assert circuit.probes(late)
    assert not circuit.probes(late + PROBE_SECONDS / 2)
    assert circuit.probes(late + 2 * PROBE_SECONDS)
    circuit.on_answer()
    assert not circuit.is_open(late + 100.0)
