"""What the command line says before any command runs: nothing heavy is imported for it, and names complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command

from hushstream.cli.commands import Commands
from hushstream.cli.main import app

WATCHED = """
import json, sys
from hushstream.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("\\n" + json.dumps(sorted(sys.modules)))
"""
COMPLETE = {"_HUSHSTREAM_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
HEAVY = {"numpy", "scipy", "yaml", "faust", "aiokafka", "fastavro", "cryptography", "matplotlib", "sklearn"}


def _watched(*arguments: str, **environment: str) -> tuple[list[str], set[str]]:
    """What a process printed, and every module that it had imported at its end."""
    found = subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
        encoding="utf-8",
    )
    *printed, modules = found.stdout.splitlines()
    return printed, set(json.loads(modules))


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("--help",), {}),
        (("--version",), {}),
        ((), {}),
        (("nothing",), {}),
        ((), {**COMPLETE, "COMP_WORDS": "hushstream gu"}),
    ],
)
def test_what_needs_no_command_imports_none_and_no_library_that_one_works_with(arguments, environment):
    _, found = _watched(*arguments, **environment)
    assert not HEAVY & found
    ours = {name for name in found if name.startswith("hushstream.")}
    assert {name.split(".")[1] for name in ours} == {"cli", "schemas"}
    assert not ours & {module for part in Commands.parts.values() for module in part.modules}


def test_a_start_hardly_looks_for_garbage_that_imports_do_not_make():
    told = f"{WATCHED}import gc\nprint(json.dumps([at['collections'] for at in gc.get_stats()]))"
    command = [sys.executable, "-c", told, "worker", "learner", "--deployment", "nowhere"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
    *_, modules, collections = found.stdout.splitlines()
    assert "hushstream.agents.worker.worker" in json.loads(modules)
    assert sum(json.loads(collections)) < 60


def test_a_worker_starts_without_machines_of_other_roles_and_without_reports(cli, tmp_path):
    shop = Path(__file__).parents[2] / "deploy/examples/shop.yaml"
    assert cli("prepare", str(shop), str(tmp_path)).code == 0
    _, found = _watched("worker", "learner", "--deployment", str(tmp_path), "--keys", str(tmp_path / "none"))
    of_system = {name.removeprefix("hushstream.systems.p2b.") for name in found if "systems.p2b." in name}
    assert {"system", "guarantee.promise", "edge.policy"} <= of_system
    machines = {name for name in of_system if name.startswith("machines.")}
    assert not machines & {"machines.aggregator", "machines.shuffler"}
    assert not {name for name in of_system if name.startswith(("reports", "device."))}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("gu", ["guarantee"]), ("zzz", []), ("keys ro", ["rotate"]), ("verify --jso", ["--json"])],
)
def test_the_shell_completes_commands_and_options(typed, expected):
    words = f"hushstream {typed}"
    printed, _ = _watched(**{**COMPLETE, "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))})
    assert [line for line in printed if line] == expected


def test_what_is_listed_of_a_command_is_its_own_first_line():
    made = get_command(app).commands
    assert list(made) == list(Commands.parts)
    for name, part in Commands.parts.items():
        assert (made[name].help.splitlines()[0], made[name].hidden) == (part.help, part.hidden)


def test_the_version_is_that_of_the_package(cli):
    answer = cli("--version")
    assert (answer.code, answer.out) == (0, f"hushstream {version('hushstream')}\n")


def test_audit_alone_lists_what_can_be_attacked(cli):
    found = cli("audit", "--json").json
    assert "slot-sums" in found["mechanisms"]
    assert {"discrete-laplace", "exponential", "buffered-toeplitz"} <= set(found["rows"])
    text = cli("audit")
    assert text.code == 0
    assert "discrete-laplace" in text.out.splitlines()
