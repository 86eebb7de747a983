"""The parts of the tests: `make test` runs the quick part, `make test-all` runs all, CI runs a share of the rest.

A marker of `LEFT` takes a test out of the quick part. ``keep=[...]`` names those that stay in it, so that each promise
keeps a quick example beside its sweep: test functions (``test_x``), single cases (``test_x[server]``), or cases of
every function (``server``).

    pytest --part quick                     what `make test` runs
    pytest --part rest                      what it leaves out
    pytest --part rest --share 8 --of ID    eight files of the rest, others for each ID (a commit)

Without ``--part`` everything runs that is named.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

LEFT = {
    "process": "make test-all",
    "slow_statistics": "make test-all",
    "sweep": "make test-all",
    "kafka": "make test-kafka",
}
"""Markers of tests that are not in the quick part, and what runs them."""

_LEFT_OUT = pytest.StashKey[Counter[str]]()
_SHARED = pytest.StashKey[tuple[int, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say which part runs."""
    group = parser.getgroup("parts", "parts of the tests")
    group.addoption("--part", choices=("quick", "rest"), help="the quick tests, or all others; without it both")
    group.addoption("--share", type=int, metavar="FILES", help="of --part rest only so many files")
    group.addoption("--of", default="", help="which share: another for each text, such as a commit")


def left_to(item: pytest.Item) -> str | None:
    """The marker that takes a test out of the quick part; None if it is in it."""
    if item.get_closest_marker("kafka"):
        return "kafka"
    for name in LEFT:
        marker = item.get_closest_marker(name)
        if marker is not None and not _names(item) & set(marker.kwargs.get("keep", ())):
            return name
    return None


def _names(item: pytest.Item) -> set[str]:
    names = {item.name, getattr(item, "originalname", item.name)}
    return names | {item.callspec.id} if hasattr(item, "callspec") else names


def share(files: Iterable[Path], count: int, of: str) -> set[Path]:
    """So many of some files: others for each ``of``, the same whenever it is the same."""
    return set(sorted(files, key=lambda file: hashlib.sha256(f"{of} {file.as_posix()}".encode()).digest())[:count])


def _require_kept(items: Sequence[pytest.Item]) -> None:
    """A name that is kept must be there, or a renamed test would leave the quick part unnoticed."""
    there: dict[Path, set[str]] = {}
    for item in items:
        there.setdefault(item.path, set()).update(_names(item))
    for item in items:
        for marker in item.iter_markers():
            gone = set(marker.kwargs.get("keep", ())) - there[item.path] if marker.name in LEFT else ()
            if gone:
                names = ", ".join(sorted(gone))
                raise pytest.UsageError(f"{item.path}: {marker.name}: expected names of tests to keep, got {names}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the asked part; what is left out is counted by its marker."""
    part = config.getoption("part")
    if part is None:
        return
    _require_kept(items)
    markers = {item: left_to(item) for item in items}
    if part == "quick":
        chosen = [item for item in items if markers[item] is None]
    else:
        chosen = [item for item in items if markers[item] not in (None, "kafka")]
        files = {item.path.relative_to(config.rootpath) for item in chosen}
        if config.getoption("share") is not None:
            drawn = share(files, config.getoption("share"), config.getoption("of"))
            config.stash[_SHARED] = len(drawn), len(files)
            chosen = [item for item in chosen if item.path.relative_to(config.rootpath) in drawn]
    kept = set(chosen)
    left = [item for item in items if item not in kept]
    config.stash[_LEFT_OUT] = Counter(markers[item] or "quick" for item in left)
    items[:] = chosen
    config.hook.pytest_deselected(items=left)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist tells its parent, which collects nothing itself, what it left out."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and _LEFT_OUT in session.config.stash:
        output["left_out"] = dict(session.config.stash[_LEFT_OUT])
        output["shared"] = session.config.stash.get(_SHARED, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take from the first process what all of them left out, and count it in the closing line."""
    output = getattr(node, "workeroutput", {})
    if "left_out" not in output or _LEFT_OUT in node.config.stash:
        return
    left_out = node.config.stash[_LEFT_OUT] = Counter(output["left_out"])
    if output["shared"] is not None:
        node.config.stash[_SHARED] = tuple(output["shared"])
    reporter = node.config.pluginmanager.get_plugin("terminalreporter")
    reporter.stats.setdefault("deselected", []).extend(SimpleNamespace() for _ in range(left_out.total()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out, and what runs it."""
    if _LEFT_OUT not in config.stash:
        return
    if config.getoption("part") == "quick":
        terminalreporter.write_line(_sentence(config.stash[_LEFT_OUT]))
    if _SHARED in config.stash:
        drawn, files = config.stash[_SHARED]
        terminalreporter.write_line(f"{drawn} of the {files} files ran that have tests beside those of `make test`.")


def _sentence(left_out: Counter[str]) -> str:
    commands: dict[str, list[str]] = {}
    for marker, command in LEFT.items():
        if left_out[marker]:
            commands.setdefault(command, []).append(f"{left_out[marker]:,} {marker}")
    told = " and ".join(f"`{command}` ({', '.join(counts)})" for command, counts in commands.items())
    return f"{left_out.total():,} tests are left to {told}; CONTRIBUTING.md says what is tested where."
