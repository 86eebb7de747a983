"""Playing data from the command line: reports, logs of another policy, datasets, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_forms import write_criteo, write_mediamill
from typer.testing import CliRunner

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.cli.main import app
from hushstream.engine.records import InputRecord
from hushstream.ops.export import export_copy
from hushstream.ops.log_copy import LogCopy, whole
from hushstream.replay.runners.stream import StreamSession

pytestmark = pytest.mark.slow

TINY = ("--world", "users=40", "--world", "rounds=3", "--set", "encoder.codes=4")
MAPPING = {
    "user": "who",
    "features": {"x": {"kind": "number", "range": [0, 1]}},
    "arm": "shown",
    "arms": 3,
    "reward": "liked",
    "uniform": True,
    "data": "public",
}


@pytest.fixture
def mapping(tmp_path):
    """Write a mapping file with changes."""

    def write(**changes: object):
        path = tmp_path / "mapping.yaml"
        path.write_text(json.dumps({**MAPPING, **changes}), encoding="utf-8")
        return path

    return write


@pytest.fixture
def log(tmp_path):
    """A log of 60 rows of 20 users, with a byte-order mark as a spreadsheet writes it."""
    rows = [f"u{row % 20},{0.25 * (row % 5)},{row % 3},{row % 2}" for row in range(60)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["who,x,shown,liked", *rows]), encoding="utf-8-sig")
    return path


def test_a_direct_replay_writes_a_whole_report_and_json_with_the_promised_keys(cli, tmp_path):
    answer = cli("replay", *TINY, "--report", tmp_path / "report", "--json")
    assert (answer.code, answer.err) == (0, "")
    written = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"results.json", "rows.csv", "rewards.csv", "rewards.png", "index.html"} <= written
    document = json.loads((tmp_path / "report" / "results.json").read_text(encoding="utf-8"))
    assert document == answer.json
    assert len(document["rows"]) == 3
    for row in document["rows"]:
        assert 0 <= row["mean_reward"] <= 1
        assert row["ci95"] >= 0
    assert set(document["privacy"]) > {"sentence", "person", "unit", "mechanism", "not_protected"}
    assert document["counts"]["decided"] > 0
    assert document["throughput"]["events_per_second"] > 0
    assert {check["status"] for check in document["verify"].values()} == {"equal"}


def test_without_json_a_table_names_the_arms_the_guarantee_and_the_report(cli, tmp_path):
    answer = cli("replay", *TINY, "--option", "conditions=[cold, warm_private]", "--report", tmp_path / "report")
    assert answer.code == 0
    assert "own learning only" in answer.out
    assert "REPRODUCIBLE, NOT PRIVATE" in answer.out
    assert str(tmp_path / "report") in answer.out.replace("\n", "")
    assert (answer.err, "Traceback" in answer.out) == ("", False)


WORLDS = (
    "known: catalogue, colin, criteo, filmtrust, lastfm, mediamill, ml-100k, ml-clicks, ml-ratings, ml-vendors, "
    "own-ratings, own-records, own-vendors, shop, sparse-synthetic, synthetic, tastes, tmc-binary, tmc2007, vendors"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--dataset", "nothing"),
            f"unknown world 'nothing'; {WORLDS}",
        ),
        (
            ("--dataset", "obd"),
            f"{WORLDS}; 'obd' is played by `hushstream eval",
        ),
        (("--dataset", "filmtrust"), "'filmtrust' is played by `hushstream replay bgt --dataset filmtrust`"),
        (("--dataset", "colin"), "got 'colin'; 'colin' is played by `hushstream replay colin --dataset colin`"),
        (("colin", "--dataset", "synthetic"), "'synthetic' is played by `hushstream replay p2b --dataset synthetic`"),
        (("--world", "colour=1"), "has no option colour; known: variant, users"),
        (("--world", "users"), "--world: expected NAME=VALUE, got 'users'"),
        (("--world", "users=["), "--world users: expected a value in YAML"),
        (("--world", "users=many"), "users must be a whole number, got 'many'"),
        (("--world", "users=2.5"), "users must be a whole number, got 2.5"),
        (("--world", "arms=true"), "arms must be a whole number, got True"),
        (("--set", "privacy.epsilon=-1"), "privacy.epsilon: expected a finite number above 0"),
        (("--set", "privacy=1", "--set", "privacy.epsilon=2"), "expected privacy to have values below it"),
        (("--set", "relase.epsilon=1"), "relase: there is no such key"),
        (("other",), "system: expected p2b or colin or pdap or pdol or bgt, got 'other'"),
        (("colin", "--option", "pace=9"), "run: expected options of colin (rounds, rounds_per_phase); got pace"),
        (("--option", "colour=red"), "run: expected options of p2b (contributors, evaluated"),
        (("--limit", "9", "--world", "users=8"), "limit: expected limit or users of the world"),
        (("--option", "conditions=hot"), "conditions: expected some of cold, warm_nonprivate, warm_private, got hot"),
        (("--option", "pace=0"), "expected in_flight and pace above 0"),
        (("--limit", "0"), "users must be in 1..4294967296, got 0"),
        (("--dataset", "tmc2007", "--data-dir", "absent"), "expected its files in absent"),
    ],
)
def test_an_impossible_replay_is_one_line(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused("replay", *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dataset", ["mediamill", "criteo"])
def test_a_dataset_without_an_address_is_replayed_from_a_local_folder(cli, refused, tmp_path, monkeypatch, dataset):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HUSHSTREAM_DATA", raising=False)
    arguments = ("replay", "p2b", "--dataset", dataset, "--option", "contributors=14", "--limit", "20")
    small = ("--world", "rounds=5", "--set", "encoder.codes=8")
    assert "give a local folder with " in refused(*arguments, *small)
    write_mediamill(tmp_path / "mediamill", 120)
    write_criteo(tmp_path / "criteo", 400)
    document = cli(*arguments, *small, "--data-dir", tmp_path, "--report", tmp_path / "report", "--json").json
    assert document["counts"]["decided"] > 0
    assert {check["status"] for check in document["verify"].values()} == {"equal"}
    with (tmp_path / "criteo" / "train.txt").open("a", encoding="utf-8") as log:
        log.write("1\t2")
    if dataset == "criteo":
        assert "train.txt, line 401: expected 0 or 1, 13 whole" in refused(*arguments, *small, "--data-dir", tmp_path)
    present = {
        item["name"] for item in cli("datasets", "list", "--data-dir", tmp_path, "--json").json if item["present"]
    }
    assert {"mediamill", "criteo"} <= present


def test_users_cannot_be_limited_where_a_world_has_no_such_option(refused, monkeypatch):
    from hushstream.replay.study import study_of
    from hushstream.replay.worlds.synthetic import synthetic

    monkeypatch.setitem(study_of("p2b").worlds, "fixed", lambda *, rounds=3: synthetic(users=40, rounds=rounds))
    assert "number of users can be chosen, got 'fixed' with the options rounds" in refused(
        "replay", "--dataset", "fixed", "--limit", "9"
    )


def test_users_are_limited_and_both_systems_give_the_same_measures(cli, tmp_path):
    p2b = cli("replay", "--limit", "20", "--world", "rounds=2", "--set", "encoder.codes=4", "--report", tmp_path,
              "--json").json  # fmt: skip
    small = ("--world", "arms=4", "--world", "dimension=3", "--world", "pool=20")
    colin = cli(
        "replay", "colin", "--limit", "4", "--option", "rounds=3", *small, "--report", tmp_path / "colin", "--json"
    )
    assert (colin.code, colin.err) == (0, "")
    assert colin.json["facts"]["users"] == 4
    assert [row["users"] for row in p2b["rows"]] == [6, 6, 6]
    assert set(colin.json["throughput"]) == set(p2b["throughput"]) > {"decision_seconds_p50", "events_per_second"}
    for same in ("environment", "count_classes", "verify"):
        assert colin.json[same].keys() & p2b[same].keys()
        assert {type(value) for value in colin.json[same].values()} == {type(value) for value in p2b[same].values()}
    assert colin.json["verify"]["learner"].keys() == p2b["verify"]["learner"].keys()
    assert colin.json["throughput"]["decisions"] == 12


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(refused, log, mapping, tmp_path, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("it ran")

    monkeypatch.setattr("hushstream.replay.catalogue.run_with", never)
    monkeypatch.setattr("hushstream.replay.studies.p2b.evaluation.evaluate_with", never)
    (tmp_path / "taken").write_text("x", encoding="utf-8")
    place = tmp_path / "taken" / "report"
    assert "expected a folder to write to" in refused("replay", *TINY, "--report", place)
    assert "expected a folder to write to" in refused("replay", "colin", "--report", place)
    assert "expected a folder to write to" in refused("evaluate", "--log", log, "--mapping", mapping(), "--out", place)


def test_a_stream_without_its_broker_is_one_line(refused, tmp_path):
    line = refused("replay", *TINY, "--runner", "stream", "--bootstrap", "127.0.0.1:1", "--report", tmp_path)
    assert "no broker at 127.0.0.1:1" in line


@pytest.fixture
def security(tmp_path):
    """Write the settings of a connection."""

    def write(text: str):
        path = tmp_path / "broker.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("command", [("demo",), ("replay", *TINY, "--runner", "stream")])
def test_settings_of_a_connection_are_refused_before_anything_runs(refused, security, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    wrong, unencrypted = security("pasword: hunter2\n"), ("--bootstrap", "kafka.example.org:9092")
    line = refused(*command, "--bootstrap", "127.0.0.1:1", "--security", wrong)
    assert "pasword: " in line
    assert "hunter2" not in line
    assert "expected the address of a Kafka" in refused(*command, "--security", wrong)
    assert "expected an encrypted connection" in refused(*command, *unencrypted)
    plain = security("protocol: PLAINTEXT\n")
    assert "expected an encrypted connection" in refused(*command, *unencrypted, "--security", plain)
    assert not (tmp_path / "report").exists()


@pytest.mark.process
def test_the_workers_of_a_replay_get_the_settings_too(cli, bootstrap, security, tmp_path, monkeypatch):
    started, spawn = [], StreamSession.spawn
    monkeypatch.setattr(
        StreamSession, "spawn", lambda self, role, *command: started.append(command) or spawn(self, role, *command)
    )
    plain = security("allow_plaintext: true\n")
    place = ("--runner", "stream", "--bootstrap", bootstrap, "--security", plain, "--report", tmp_path / "report")
    answer = cli(
        "replay", *TINY, *place, "--set", "deployment=settled", "--option", "conditions=warm_private", "--json"
    )
    assert answer.code == 0, answer
    assert [line[line.index("--security") + 1] for line in started] == [str(plain)] * 3


def test_a_log_of_another_policy_is_judged(cli, log, mapping, tmp_path):
    arguments = (
        "evaluate",
        "--log",
        log,
        "--mapping",
        mapping(),
        "--out",
        tmp_path / "out",
    )
    answer = cli(*arguments, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8")) == answer.json
    policies = [(row["policy"], row["estimator"]) for row in answer.json["rows"]]
    learning = ("own learning only", "shared private model")
    assert [policy for policy, estimator in policies if estimator == "replay"] == list(learning)
    assert list(dict.fromkeys(policy for policy, _ in policies)) == [
        *learning,
        "random",
        "popular",
        "non-private",
        "nonlinear",
        "logged",
    ]
    assert answer.json["marks"] == ["REPRODUCIBLE, NOT PRIVATE"], "the deployment sends nothing in clear"
    assert {one["status"] for one in answer.json["verify"].values()} == {"equal"}
    table = cli(*arguments)
    assert "shared private model" in table.out
    assert "warm_private" not in table.out, "one name for one thing, as in the verdict and on the page"
    assert [line for line in table.out.splitlines() if line != line.rstrip()] == []
    assert "effective sample size" in " ".join(table.out.split())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"public": True}, "public: expected the key `data` in its place"),
        ({"colour": "red"}, "unknown key colour; known: arm"),
        ({"reward": "clicked"}, "missing column clicked; it has who, x, shown, liked"),
        ({"arms": 2}, "column shown: expected an arm in 0..1"),
    ],
)
def test_a_mapping_that_does_not_fit_is_one_line(refused, log, mapping, changes, message):
    assert message in refused("evaluate", "--log", log, "--mapping", mapping(**changes))


def test_a_mapping_and_a_deployment_that_are_swapped_are_called_so(refused, log, mapping, config):
    shop, columns = config(), mapping()
    swapped = "; are --mapping and --deployment swapped?\n"
    told = refused("evaluate", "--log", log, "--mapping", shop, "--deployment", columns)
    looks = "expected the configuration of a deployment, got what looks like the mapping of a log"
    assert told == f"hushstream: {columns}: {looks}{swapped}"
    told = refused("evaluate", "--log", log, "--mapping", shop)
    looks = "expected a mapping of the log's columns, got what looks like the configuration of a deployment"
    assert told == f"hushstream: {shop}: {looks}{swapped}"


def test_empty_and_absent_logs_are_one_line(refused, mapping, tmp_path):
    log = tmp_path / "log.csv"
    for content in ("", "who,x,shown,liked\n"):
        log.write_text(content, encoding="utf-8")
        assert "the table has no rows" in refused("evaluate", "--log", log, "--mapping", mapping())
    log.unlink()
    assert "expected a file, got none" in refused("evaluate", "--log", log, "--mapping", mapping())
    assert "expected a file, got a folder" in refused("evaluate", "--log", tmp_path, "--mapping", mapping())
    assert "expected a configuration file, got none" in refused("evaluate", "--log", log, "--mapping", tmp_path / "no")
    assert "got both or neither" in refused("evaluate")
    assert "unknown log 'nothing'; known: obd" in refused("evaluate", "--dataset", "nothing")
    assert "'tmc2007' is played by `hushstream replay p2b --dataset tmc2007`" in refused(
        "evaluate", "--dataset", "tmc2007"
    )
    assert "has no option colour" in refused("evaluate", "--dataset", "obd", "--option", "colour=red")


def test_datasets_are_listed_and_inspected_as_json(cli):
    listed = {item["name"]: item for item in cli("datasets", "list", "--json").json}
    assert {"synthetic", "ml-100k", "tmc2007", "obd"} <= set(listed)
    assert cli("datasets", "inspect", "synthetic", "--json").json["arms"] == 10
    assert cli("datasets", "inspect", "colin", "--json").json["users"] == 10


@pytest.mark.parametrize("name", ["log.jsonl", "log.json", "log.ndjson", "log.txt", "log.tsv"])
def test_a_file_of_ones_own_is_inspected_whatever_it_is_called(cli, refused, tmp_path, name):
    rows = [{"item": "ab"[row % 2], "age": row % 7, "click": row % 2} for row in range(60)]
    tabs = "\n".join(["item\tage\tclick", *("\t".join(map(str, row.values())) for row in rows)])
    (tmp_path / name).write_text("\n".join(map(json.dumps, rows)) if "js" in name else tabs, encoding="utf-8")
    assert set(cli("datasets", "inspect", tmp_path / name, "--json").json["features"]) == {"age"}
    assert "expected a file, got none" in refused("datasets", "inspect", tmp_path / f"absent-{name}")


def test_the_list_says_which_command_plays_a_dataset_and_the_command_knows_its_name(cli):
    played = {item["name"]: item["played_by"] for item in cli("datasets", "list", "--json").json}
    assert played == {
        "catalogue": ["replay p2b"],
        "colin": ["replay colin"],
        "criteo": ["replay p2b"],
        "filmtrust": ["replay bgt"],
        "lastfm": ["replay colin"],
        "mediamill": ["replay p2b"],
        "ml-100k": ["replay p2b"],
        "ml-clicks": ["replay pdol"],
        "ml-ratings": ["replay bgt"],
        "ml-vendors": ["replay pdap"],
        "obd": ["evaluate"],
        "shop": ["replay p2b"],
        "sparse-synthetic": ["replay pdol"],
        "synthetic": ["replay p2b"],
        "tastes": ["replay bgt"],
        "tmc-binary": ["replay pdol"],
        "tmc2007": ["replay p2b"],
        "vendors": ["replay pdap"],
    }
    for name, commands in played.items():
        for command in commands:
            # An option that no dataset has is refused only where the name is known.
            option = "--option" if command == "evaluate" else "--world"
            answer = cli(*command.split(" "), "--dataset", name, option, "colour=1")
            assert f"{name!r} has no option colour" in answer.err
    table = cli("datasets", "list")
    for row in table.out.splitlines():
        for name, commands in played.items():
            if row.split()[:1] == [name]:
                assert ", ".join(commands) in row
    assert "hushstream COMMAND --dataset DATASET" in table.out


def test_unknown_and_absent_datasets_are_one_line(refused, tmp_path):
    for command in (("inspect",), ("fetch",)):
        assert "unknown dataset 'nothing'; known: " in refused("datasets", *command, "nothing")
    absent = tmp_path / "absent"
    assert f"expected its files in {absent}" in refused("datasets", "inspect", "obd", "--data-dir", absent)
    assert f"expected its files in {absent}" in refused("datasets", "fetch", "obd", "--data-dir", absent)


def test_experiments_are_listed_and_unknown_ones_refused(cli, refused):
    listed = cli("experiment")
    assert listed.code == 0
    for name in ("p2b-fig4", "p2b-fig5", "p2b-fig6", "joining"):
        assert name in listed.out
    assert "unknown experiment 'nothing'" in refused("experiment", "nothing")


# From an export to a table that `evaluate` reads: the commands.

CONFIG = {
    "deployment": "shop",
    "items": {"capacity": 5},
    "features": {"dimension": 4, "digits": 1},
    "expected_slots": 100,
    "encoder": {"codes": 4},
    "feedback": {"attribution_window_seconds": 5},
    "exploration": {"choice": "epsilon", "share": 0.5},
}


@pytest.fixture
def exported(rigs: Any, tmp_path: Path) -> Path:
    """A deployment's folder and an export of 480 decisions; every other one was shown as it was answered."""
    system = prepare(tmp_path / "shop", parse_config(CONFIG))
    rig, rng = rigs.LearnerRig(system.core), np.random.default_rng(1)
    for first in range(0, 480, 24):
        for number in range(first, first + 24):
            rig.context(f"e{number}", f"user-{number % 24}", rigs.point(number))
        arms = rig.fold().arms
        rig.wait(1.0)
        for number in range(first, first + 24):
            arm = arms[f"e{number}"] if number % 2 else int(rng.integers(5))
            rig.reward(f"e{number}", arm, float(rng.random() < 0.5), f"user-{number % 24}")
        rig.wait(1.0)
    rig.wait(60.0)
    rig.context("last", "user-0", rigs.point(0))
    rig.fold()
    journal = [InputRecord(offset, rig.now_ms, value) for offset, value in enumerate((rig.genesis, *rig.journal))]
    logs = {**rig.logs, ("decisions", 0): journal}
    export_copy(LogCopy({source: whole(records) for source, records in logs.items()}), system, tmp_path / "out")
    return tmp_path


def _run(*arguments: Any, code: int = 0) -> str:
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    assert found.exit_code == code, found.output
    return found.output


def test_an_export_becomes_a_table_whose_command_line_evaluate_takes(exported):
    said = _run("topics", "table", exported / "out", exported / "own", "--deployment", exported / "shop")
    assert said.startswith("INTERNAL, NOT PRIVATE")
    assert "left out" in said
    command = said.splitlines()[-1].split()
    assert command[:2] == ["hushstream", "evaluate"]
    judged = _run(*command[1:], "--json")
    assert "INTERNAL, NOT PRIVATE" in judged
    _run("topics", "table", exported / "out", exported / "own", "--deployment", exported / "shop", code=1)
