"""Commands on a secured broker: topics and rules in one command, for the principals that are named; a whole replay."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.cli.main import main
from patience import Patience

pytestmark = pytest.mark.kafka

VALUES = {"items": {"capacity": 3}, "features": {"dimension": 3}, "expected_slots": 20, "encoder": {"codes": 2}}
DECLARED = {**VALUES, "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}}, "encoder": {}}


@pytest.fixture(scope="module")
def folder(fresh_name: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command")
    prepare(folder, parse_config({**VALUES, "deployment": fresh_name()}))
    return folder


@pytest.fixture
def topics(kafka: Any, folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``hushstream topics VERB`` as a user: exit code, output, errors."""

    def run(verb: str, *arguments: str, who: str = "admin") -> tuple[int, str, str]:
        capfd.readouterr()
        place = ["-d", str(folder), "-b", kafka.passwords, "--security", str(kafka.file(who))]
        with pytest.raises(SystemExit) as ended:
            main(["topics", verb, *place, *arguments])
        captured = capfd.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def test_topics_and_rules_are_planned_made_once_and_checked(
    kafka: Any, folder: Path, topics: Callable[..., tuple[int, str, str]]
) -> None:
    named = ("--principals", "shuffler=User:CN=mixer")
    planned = json.loads(topics("plan", *named, "--json")[1])
    rules = [item for item in planned if "principal" in item]
    assert {rule["principal"] for rule in rules} == {
        "User:client", "User:learner", "User:CN=mixer", "User:aggregator", "User:operator",
        "User:letters-edge", "User:letters-shuffler", "User:letters-server",
    }  # fmt: skip
    code, told, _ = topics("check", *named)
    assert code == 1
    assert told.count("expected topic to exist") == len(planned) - len(rules)
    mends = f"topics apply --principals shuffler=User:CN=mixer --deployment {folder} --bootstrap {kafka.passwords}"
    mends += f" --security {kafka.file('admin')}"
    assert told.count(f"there is no such rule; `hushstream {mends}` creates it") == len(rules)
    told = topics("check", "--no-acls", who="operator")[1]
    assert "`hushstream topics apply --deployment " in told
    assert "operator.yaml" not in told, "the operator's account may not create a topic"
    assert told.count(" --security ADMINISTRATOR.yaml` creates it") == len(planned) - len(rules)
    assert json.loads(topics("apply", *named, "--json")[1]) == planned
    assert json.loads(topics("apply", *named, "--json")[1]) == []
    assert topics("check", *named)[:2] == (0, "all topics are as declared\n")
    # Under another name for the shuffler, what the first one was given is too much and the second lacks all.
    code, told, _ = topics("check")
    assert code == 1
    assert "a rule allows User:CN=mixer" in told
    assert "for User:shuffler, there is no such rule" in told
    assert topics("check", "--principals", "administrator=User:CN=mixer", *named)[0] == 0


def test_rules_may_be_left_to_others_and_a_misspelt_role_is_one_line(
    topics: Callable[..., tuple[int, str, str]],
) -> None:
    assert topics("apply", "--no-acls", "--json")[0] == 0
    assert topics("check", "--no-acls", who="operator")[:2] == (0, "all topics are as declared\n")
    code, out, error = topics("apply", "--principals", "shufler=User:x")
    assert (code, out) == (1, "")
    assert error.startswith("hushstream: --principals: expected ROLE=TYPE:NAME")
    assert error.count("\n") == 1


def test_a_replay_runs_on_it_with_client_and_workers_behind_a_password(
    kafka: Any, fresh_name: Callable[[], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One principal plays all the parts, as on a developer's machine."""
    place = ["--bootstrap", kafka.passwords, "--security", str(kafka.file("admin")), "--report", str(tmp_path)]
    world = ["--world", "users=40", "--world", "rounds=3", "--option", "conditions=warm_private"]
    config = ["--set", "encoder.codes=4", "--set", f"deployment={fresh_name()}"]
    with pytest.raises(SystemExit) as ended:
        main(["replay", "--runner", "stream", *place, *world, *config, "--json"])
    assert not ended.value.code
    checks = json.loads(capfd.readouterr().out)["verify"]
    assert {check["status"] for check in checks.values()} == {"equal"}


RUN = {
    "budget": ["budget"],
    "model": ["model", "show"],
    "items": ["items", "list"],
    "forget": ["forget", "ann", "--wait", "0"],
    "dead letters": ["dead-letters", "list", "edge"],
    "verify of a role": ["verify", "--role", "aggregator"],
    "verify": ["verify", "--seed", "1"],
    "export": ["topics", "export", "copy"],
    "check of logs": ["logs", "check", "--role", "shuffler", "--seed", "1"],
}


@pytest.mark.parametrize("name", RUN)
def test_a_command_without_a_right_prints_the_one_that_gives_it_and_works_as_printed(
    kafka: Any, fresh_name: Callable[[], str], tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, name: str,
) -> None:  # fmt: skip
    """Under an account that has no right yet; only the administrator's file is put in by hand."""
    values = DECLARED if name == "model" else VALUES
    prepare(tmp_path / "shop", parse_config({**values, "deployment": fresh_name()}))
    monkeypatch.chdir(tmp_path)
    place = ["-d", str(tmp_path / "shop"), "-b", kafka.passwords, "--security"]

    def run(*words: str) -> tuple[int, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        captured = capfd.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    assert run("topics", "apply", "--no-acls", *place, str(kafka.file("admin")))[0] == 0
    code, told = run(*RUN[name], *place, str(kafka.file("stranger")))
    assert code
    command = told.split("`hushstream ")[1].split("`")[0].replace("ADMINISTRATOR.yaml", str(kafka.file("admin")))
    assert "=User:stranger" in command, told
    code, said = run(*shlex.split(command))
    assert code == 0, said
    waiting = Patience(30.0)
    while "expected the right to" in (told := run(*RUN[name], *place, str(kafka.file("stranger")))[1]):
        assert not waiting.over, told
    assert "access rules forbid" not in told
