"""Help, wrong usage, and the command as a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hushstream.cli.main import app
from patience import patience


def _commands(command, path=()):
    """Every command below a group, hidden ones included, with its path."""
    below = getattr(command, "commands", None)
    if not below:
        return [path]
    return [path, *(found for name, child in below.items() for found in _commands(child, (*path, name)))]


COMMANDS = _commands(get_command(app))


def test_every_promised_command_is_there():
    promised = "demo,replay,worker,broker,datasets list,datasets fetch,datasets inspect,experiment,guarantee,prepare"
    promised += ",topics plan,topics apply,topics check,topics export,budget,verify,dead-letters list"
    promised += ",dead-letters show,dead-letters requeue,config check,keys generate,keys check,bench,evaluate,audit"
    promised += ",config options"
    assert {tuple(name.split(" ")) for name in promised.split(",")} <= set(COMMANDS)


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in {("broker",), ("sizes",)}], ids=" ".join)
def test_every_command_explains_itself(path):
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.output
    assert " ".join(path) in result.output


def test_help_keeps_brackets_and_breaks_lines_where_the_terminal_does():
    lines = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["evaluate", "--help"]).output.splitlines()
    assert any("a histogram (bounds: {column: [low, high]} and" in line for line in lines)
    assert any("a visit: --init LOG drafts both. Keys of the mapping:" in line for line in lines)


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
        (("audit", "paper"), "Invalid value for 'mechanism'"),
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
        (("quickstart", "--port", "80000"), "'--port': expected at most 65535, got '80000'\n"),
        (("quickstart", "--port", "http"), "'--port': expected a whole number, got 'http'\n"),
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
