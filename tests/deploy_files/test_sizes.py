"""The script that the page on sizing comes from counts every topic of each system, and what its roles hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SMALL = {
    "p2b": ("--users", "6", "--window-slots", "3", "--codes", "2", "--dimension", "3", "--arms", "3"),
    "colin": ("--users", "4", "--rounds", "4", "--rounds-per-phase", "2", "--rows", "4", "--dimension", "3"),
}
TOPICS = {
    "p2b": {"contexts", "clicks", "decisions", "reports", "journal-shuffler", "crowds", "ledger", "models"},
    "colin": {"contexts", "clicks", "decisions", "rewards", "journal-counter", "releases", "ledger", "models"},
}
ROLES = {"p2b": ("learner", "shuffler", "aggregator"), "colin": ("learner", "counter", "aggregator")}


@pytest.mark.sweep(keep=["colin"])
@pytest.mark.parametrize("system", ["p2b", "colin"])
def test_every_topic_and_every_role_is_counted(system: str, deploy: Path, script: Any) -> None:
    answer = script(deploy / "docs" / "sizes.py", "--system", system, *SMALL[system])
    assert answer.returncode == 0, answer.stderr
    lines = [line.split() for line in answer.stdout.splitlines()[2:]]
    counted = {words[0]: (int(words[1]), float(words[2])) for words in lines if not words[0].endswith(":")}
    assert counted.keys() >= TOPICS[system]
    assert all(records > 0 and size > 0 for records, size in counted.values())
    held = {words[0].rstrip(":"): float(words[2]) for words in lines if words[0].endswith(":")}
    assert tuple(held) == ROLES[system]
    assert min(held.values()) > 0
