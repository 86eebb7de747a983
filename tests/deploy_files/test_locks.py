"""What is installed is named by version and digest, in every lock alike."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))
NAME = re.compile(r"^[A-Za-z0-9._-]+")


def locked(name: str) -> dict[str, str]:
    """What stands behind the name of each package: version, markers and digests."""
    entries = re.sub(r"\\\n\s*", " ", (ROOT / name).read_text(encoding="utf-8")).splitlines()
    found: dict[str, str] = {}
    for entry in filter(None, entries):
        package = normal(entry)
        found[package] = found.get(package, "") + entry
    return found


def normal(requirement: str) -> str:
    found = NAME.match(requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def test_there_is_a_lock_for_everything_for_every_command_for_the_site_and_for_the_build() -> None:
    assert LOCKS == ["requirements-build.lock", "requirements-docs.lock", "requirements-run.lock", "requirements.lock"]


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_has_one_version_and_digests_and_they_are_those_of_the_lock_of_everything(name: str) -> None:
    # The site is built with more than all tests need, and shares a virtual environment with them.
    everything = locked("requirements-docs.lock") | locked("requirements.lock")
    for package, entry in locked(name).items():
        assert re.search(r"==[^ ]+", entry), package
        assert entry.count("--hash=sha256:") >= 1, package
        digests = set(re.findall(r"sha256:[0-9a-f]{64}", entry))
        assert digests <= set(re.findall(r"sha256:[0-9a-f]{64}", everything[package])), package


def test_locks_hold_what_the_project_asks_for_and_its_build_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (backend,) = project["build-system"]["requires"]
    assert re.fullmatch(r"hatchling==[0-9.]+", backend)
    extras = project["project"]["optional-dependencies"]
    assert backend in extras["build"]
    runs = {normal(one) for one in project["project"]["dependencies"]}
    wanted = {
        "requirements-docs.lock": {normal(one) for one in project["dependency-groups"]["docs"]},
        "requirements-run.lock": runs,
        "requirements-build.lock": {normal(one) for one in extras["build"]},
        "requirements.lock": runs | {normal(one) for every in extras.values() for one in every},
    }
    for name, packages in wanted.items():
        assert packages <= locked(name).keys(), name
