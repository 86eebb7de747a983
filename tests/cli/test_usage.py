"""The command line itself: help, usage, starts, terminals, pages made from code, and settings of workers."""

from __future__ import annotations

import fcntl
import importlib.util
import inspect
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from rich.table import Table
from typer.main import get_command
from typer.testing import CliRunner

from hushstream.agents import defaults
from hushstream.agents.observe.metrics import METRICS
from hushstream.agents.settings import WorkerSettings
from hushstream.cli import options
from hushstream.cli.commands import Commands
from hushstream.cli.main import app
from hushstream.cli.operate import workers
from hushstream.cli.options import LINE_EVERY_SECONDS, print_table, steps_on_a_bar
from hushstream.gateway.metrics import GATEWAY_METRICS
from hushstream.ops.check.follow import AUDIT_METRICS
from hushstream.ops.check.matching import UNEXPLAINED
from hushstream.ops.connection import Connection
from patience import patience


def _commands(command, path=()):
    """Every command below a group, with its path."""
    below = getattr(command, "commands", None)
    if not below:
        return [path]
    return [path, *(found for name, child in below.items() for found in _commands(child, (*path, name)))]


COMMANDS = _commands(get_command(app))


@pytest.mark.parametrize("path", [path for path in COMMANDS if path != ("broker",)], ids=" ".join)
def test_every_command_explains_itself(path):
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.output
    assert " ".join(path) in result.output


def test_help_keeps_brackets_and_breaks_lines_where_the_terminal_does():
    lines = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["evaluate", "--help"]).output.splitlines()
    assert any("arms: [bag, hat]" in line for line in lines)
    assert any("propensity: chance" in line and "# or uniform: true" in line for line in lines)
    assert any("How the log is replayed" in line for line in lines)


def test_the_brokers_help_is_that_of_the_broker(cli):
    answer = cli("broker", "--help")
    assert answer.code == 0
    assert "usage: hushstream broker" in answer.out
    assert "--ready-file" in answer.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "No such command 'nothing'"),
        (("worker", "nobody"), "Invalid value for 'role'"),
        (("verify", "-d", "x", "--role", "nobody"), "Invalid value for '--role'"),
        (("keys", "rotate", "nowhere", "x"), "Invalid value for 'zone'"),
        (("keys", "generate", "x", "--zone", "nowhere"), "Invalid value for '--zone'"),
        (("keys", "generate", "x", "--zone", "server"), "got 'server', a zone without a key"),
        (("dead-letters", "list", "nowhere", "-d", "x"), "Invalid value for 'zone'"),
        (("worker", "learner", "-d", "x", "--metrics-port", "99999"), "Invalid value for '--metrics-port'"),
        (("worker", "learner", "-d", "x", "--session-timeout", "0"), "Invalid value for '--session-timeout'"),
        (("worker", "learner", "-d", "x", "--log-level", "loud"), "Invalid value for '--log-level'"),
        (("topics", "plan", "-d", "x", "-b", "localhost:notaport"), "expected host:port"),
        (("topics", "plan", "-d", "x", "-b", "localhost"), "expected host:port"),
        (("topics", "plan", "-d", "x", "-b", "http://127.0.0.1:9092"), "expected host:port"),
        (("replay", "--runner", "bus"), "Invalid value for '--runner'"),
        (("replay", "--bootstrap", "localhost:0"), "expected host:port"),
        (("bench", "--rounds", "0"), "Invalid value for '--rounds'"),
        (("bench", "--only", "nothing"), "Invalid value for '--only'"),
        (("guarantee",), "Missing argument"),
        (
            ("verify", "-d", "x", "--from", "checkpoin"),
            "'--from': expected one of genesis, checkpoint, last-checkpoint, got 'checkpoin'\n",
        ),
        (
            ("worker", "learner", "-d", "x", "--log-level", "loud"),
            "'--log-level': expected one of error, warning, info, debug, got 'loud'\n",
        ),
        (("demo", "--port", "80000"), "'--port': expected at most 65535, got '80000'\n"),
        (("demo", "--port", "http"), "'--port': expected a whole number, got 'http'\n"),
        (("bench", "--rounds", "0"), "'--rounds': expected at least 1, got '0'\n"),
        (("worker", "learner", "-d", "x", "--gather", "soon"), "'--gather': expected a number, got 'soon'\n"),
        (("topics", "apply", "-d", "x", "--min-insync", "0"), "'--min-insync': expected at least 1, got '0'\n"),
    ],
)
def test_wrong_usage_is_exit_code_two(cli, arguments, message):
    answer = cli(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert message in answer.err
    assert "Traceback" not in answer.err


def test_without_arguments_the_commands_are_listed(cli):
    answer = cli()
    assert answer.code == 2
    assert "guarantee" in answer.out + answer.err


def _process(*arguments: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hushstream.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        **options,
    )


def test_as_a_process_a_mistake_is_one_line_and_exit_code_one(tmp_path):
    out, err = _process("guarantee", str(tmp_path / "absent.yaml")).communicate(timeout=patience(60))
    assert out == ""
    assert err == f"hushstream: {tmp_path / 'absent.yaml'}: expected a configuration file, got none\n"


@pytest.mark.process
def test_as_a_process_a_reader_that_goes_away_causes_no_traceback():
    process = _process("datasets", "list", "--json")
    process.stdout.close()
    assert process.wait(timeout=patience(60)) in (0, 1)
    assert process.stderr.read() == ""
    process.stderr.close()


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
    assert {"system", "guarantee", "edge.policies"} <= of_system
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
        assert made[name].help.splitlines()[0] == part.help


def test_the_version_is_that_of_the_package(cli):
    answer = cli("--version")
    assert (answer.code, answer.out) == (0, f"hushstream {version('hushstream')}\n")


def test_audit_alone_lists_what_can_be_attacked(cli):
    found = cli("audit", "--json").json
    rows = {row["name"]: row for row in found["rows"]}
    assert {"discrete-laplace", "buffered-toeplitz"} <= set(rows)
    assert (rows["lift"]["system"], rows["discrete-laplace"]["claim"][:3]) == ("p2b", "1, ")
    assert rows["pdap-paper"]["claim"] == "1, 0 (its paper's; expected to fail)"
    text = cli("audit")
    assert text.code == 0
    line = next(line for line in text.out.splitlines() if " pdap-paper " in line)
    assert "(its paper's; expected to fail)" in line


SHOP = Path(__file__).parents[2] / "deploy" / "examples" / "shop.yaml"
PLAN = ("plan", str(SHOP), "--users", "20000", "--visits-per-user", "200", "--days", "30")
COLUMNS = 60


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hushstream.cli", *arguments]


def _read_all(terminal: int) -> Iterator[bytes]:
    # Linux answers with an error, in place of an empty read, once the other side is closed.
    with suppress(OSError):
        while piece := os.read(terminal, 4096):
            yield piece


def _on_a_terminal(*arguments: str) -> str:
    """What a command prints on a terminal of `COLUMNS` columns."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", 0):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        process = subprocess.Popen(_command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        printed = b"".join(_read_all(ours)).decode()
        assert process.wait(patience(60)) == 0, printed
    return printed.replace("\r\n", "\n")


def test_a_plan_on_a_narrow_terminal_is_cut_between_words(cli):
    whole = cli(*PLAN).out
    assert max(map(len, whole.splitlines())) > COLUMNS, "in a pipe each line stays whole"
    narrow = _on_a_terminal(*PLAN)
    assert max(map(len, narrow.splitlines())) <= COLUMNS
    assert narrow.split() == whole.split()


def test_a_table_in_a_file_has_no_line_that_ends_with_blanks(capsys):
    table = Table(title="a title\nin two lines", box=None)
    for name in ("name", "meaning"):
        table.add_column(name, min_width=20)
    table.add_row("a", "b")
    print_table(table)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["a", "title"], ["in", "two", "lines"], ["name", "meaning"], ["a", "b"]]
    assert lines == [line.rstrip() for line in lines]


def test_progress_without_a_terminal_is_a_line_every_so_often(capsys):
    for quiet, expected in ((False, "phase 1: 1,000 of 3,000, some 19 s left\nphase 1: 3,000 of 3,000\n"), (True, "")):
        seconds = iter((0.0, 1.0, LINE_EVERY_SECONDS, LINE_EVERY_SECONDS + 9, 30.0))
        with steps_on_a_bar(quiet, lambda times=seconds: next(times)) as progress:
            for done in (10, 1000, 2000, 3000):
                progress(done, 3000, "phase 1")
        assert capsys.readouterr().err == expected


@pytest.mark.process
def test_an_interrupted_command_says_so_in_one_line(cli, config, tmp_path):
    assert cli("prepare", config(), tmp_path / "made").code == 0
    settings = tmp_path / "security.yaml"
    os.mkfifo(settings)
    process = subprocess.Popen(
        _command("topics", "plan", "--deployment", str(tmp_path / "made"), "--security", str(settings)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    # The pipe opens once the command reads it; the command then waits for what it holds.
    with settings.open("wb"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=patience(60))
    assert (process.returncode, out, err) == (130, "", "hushstream: interrupted\n")


ALL = (*METRICS, *GATEWAY_METRICS, *AUDIT_METRICS)
DOCUMENTS = Path(__file__).parents[2] / "deploy" / "docs"


def test_the_document_explains_every_class_and_its_endpoint():
    text = (DOCUMENTS / "metrics.md").read_text(encoding="utf-8")
    for spec in ALL:
        endpoint = "--zone-metrics-port" if spec.metric_class == "zone-private" else "--metrics-port"
        assert any(
            line.startswith(f"| {spec.metric_class} |") and line.endswith(f"`{endpoint}` |")
            for line in text.splitlines()
        )


SETTINGS = {
    "metrics_host": "metrics_host",
    "zone_metrics_host": "zone_metrics_host",
    "metrics_port": "metrics_port",
    "zone_metrics_port": "zone_metrics_port",
    "session_timeout": "session_timeout_seconds",
    "connect_timeout": "connect_timeout_seconds",
    "join_timeout": "join_timeout_seconds",
    "snapshot_interval": "snapshot_interval_seconds",
    "state_rate": "state_bytes_per_second",
    "resident_users": "resident_users",
    "gather": "journal_linger_milliseconds",
    "schedule": "schedule",
}
"""The setting of each option that has a default there."""


@pytest.fixture
def told(monkeypatch):
    """The settings that a worker was started with."""
    found = []
    monkeypatch.setattr(
        "hushstream.agents.worker.worker.run_worker", lambda settings, *_, **__: found.append(settings) or 0
    )
    return found


@pytest.fixture
def prepared(cli, config, tmp_path):
    folder = tmp_path / "shop"
    assert cli("prepare", config(), folder).code == 0
    assert cli("keys", "generate", folder / "keys").code == 0
    return folder


def test_what_is_not_said_is_the_settings_default(cli, told, prepared):
    assert cli("worker", "learner", "-d", prepared).code == 0
    given = {"bootstrap", "role", "group", "deployment", "topic_prefix", "datadir", "place"}
    defaults = WorkerSettings(**{name: getattr(told[0], name) for name in given})
    assert told[0] == defaults
    assert told[0].command("logs check") == f"hushstream logs check --deployment {prepared} --bootstrap 127.0.0.1:9092"


def test_what_is_said_goes_before(cli, told, prepared):
    options = ("--session-timeout", "3", "--resident-users", "7", "--schedule", "fixed", "--gather", "2")
    options += ("--state-rate", "4096")
    options += ("--metrics-port", "0")
    assert cli("worker", "learner", "-d", prepared, *options).code == 0
    found = told[0]
    assert (found.session_timeout_seconds, found.heartbeat_seconds) == (3.0, 1.0)
    assert (found.resident_users, found.schedule, found.metrics_port) == (7, "fixed", 0)
    assert (found.journal_linger_milliseconds, found.state_bytes_per_second) == (2, 4096)


def test_a_supervisor_says_the_words_of_a_refusal_by_the_environment(cli, told, prepared, monkeypatch):
    monkeypatch.setenv("HUSHSTREAM_ACCEPT_LOSS", "0:contexts/0:1200-1340 1:contexts/1:1180-1322")
    assert cli("worker", "learner", "-d", prepared).code == 0
    monkeypatch.setenv("HUSHSTREAM_ACCEPT_LOSS", "")
    assert cli("worker", "learner", "-d", prepared).code == 0
    assert [one.accept_loss for one in told] == [("0:contexts/0:1200-1340", "1:contexts/1:1180-1322"), ()]


@pytest.mark.parametrize("word", ["foo", "0", "0:contexts/0:12", "contexts/0:1-2", "0:0a1b", "0:0a1b:1:", "x:new:1"])
def test_a_word_of_no_refusal_is_refused_at_once(cli, told, prepared, word):
    found = cli("worker", "learner", "-d", prepared, "--accept-loss", "1:new:2", "--accept-loss", word)
    assert (found.code, told) == (2, [])
    assert "Invalid value for '--accept-loss': expected PARTITION:JOURNAL:GENERATION" in found.err


def test_a_command_has_the_defaults_of_its_settings(monkeypatch):
    def shown(command):
        return {name: parameter.default for name, parameter in inspect.signature(command).parameters.items()}

    def read_again(module):
        spec = importlib.util.spec_from_file_location("again", module.__file__)
        again = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(again)
        return again

    for option, setting in SETTINGS.items():
        assert shown(workers.worker)[option] == WorkerSettings.model_fields[setting].default, option
    with monkeypatch.context() as changed:
        for name in (name for name in vars(defaults) if name.isupper()):
            changed.setattr(defaults, name, f"another {name}")
        values = shown(read_again(workers).worker) | shown(read_again(options).served)
    found = {option: value for option, value in values.items() if str(value).startswith("another ")}
    assert found.keys() == SETTINGS.keys() - {"metrics_port", "zone_metrics_port", "schedule"}, (
        "ports and how batches are cut have none"
    )


def test_what_follows_a_role_keeps_its_place_apart_from_the_roles_workers(cli, monkeypatch, prepared):
    told = []
    monkeypatch.setattr(
        "hushstream.ops.check.follow.run_following",
        lambda settings, system, role, keys, once: told.append((settings, role, once)) or 1,
    )
    found = cli("verify", "--follow", "-d", prepared, "--role", "learner", "--once")
    assert found.code == 1
    ((settings, role, once),) = told
    assert (settings.role, role, once) == ("auditor-learner", "learner", True)
    assert settings.datadir == prepared / "state" / "auditor-learner"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--follow",), "expected one --role"),
        (("--role", "learner", "--once"), "expected them only with --follow"),
        (("--role", "learner", "--follow", "--from", "checkpoint"), "without --log and --from"),
    ],
)
def test_what_follow_takes_is_for_it_alone(refused, prepared, given, said):
    assert said in refused("verify", *given, "-d", prepared)


def test_a_finding_names_whole_commands(capsys):
    place = options.Place(Path(), SimpleNamespace(), Connection("127.0.0.1:9", "shop."), None, "--deployment shop", "")
    with pytest.raises(typer.Exit):
        options.print_and_exit(place, SimpleNamespace(as_text=lambda: f"changed: {UNEXPLAINED}", exit_code=1), False)
    assert "(`hushstream topics check --deployment shop`)" in capsys.readouterr().out
