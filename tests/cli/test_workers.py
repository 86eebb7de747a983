"""The command of a worker: what it was not told is what its settings say."""

from __future__ import annotations

import importlib
import inspect

import pytest

from hushstream.agents import defaults
from hushstream.agents.settings import WorkerSettings
from hushstream.cli.operate import workers

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
    assert (
        told[0].command("topics repair")
        == f"hushstream topics repair --deployment {prepared} --bootstrap 127.0.0.1:9092"
    )


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
    def shown():
        return {option: parameter.default for option, parameter in inspect.signature(workers.worker).parameters.items()}

    for option, setting in SETTINGS.items():
        assert shown()[option] == WorkerSettings.model_fields[setting].default, option
    with monkeypatch.context() as changed:
        for name in (name for name in vars(defaults) if name.isupper()):
            changed.setattr(defaults, name, f"another {name}")
        importlib.reload(workers)
        found = {option: value for option, value in shown().items() if str(value).startswith("another ")}
    importlib.reload(workers)
    assert found.keys() == SETTINGS.keys() - {"metrics_port", "zone_metrics_port", "schedule"}, (
        "ports and how batches are cut have none"
    )


def test_an_auditor_says_whose_output_it_checks(cli, monkeypatch, prepared):
    told = []
    monkeypatch.setattr(
        "hushstream.ops.audit.auditor.run_auditor",
        lambda settings, system, role, keys, share, once: told.append((settings, role, share, once)) or 1,
    )
    found = cli("worker", "auditor", "-d", prepared, "--role", "learner", "--sample", "0.1", "--once")
    assert found.code == 1
    ((settings, role, share, once),) = told
    assert (settings.role, role, share, once) == ("auditor-learner", "learner", 0.1, True)
    assert settings.datadir == prepared / "state" / "auditor-learner", "apart from the state of the role's workers"


@pytest.mark.parametrize(
    ("given", "said"),
    [(("auditor",), "expected --role"), (("learner", "--role", "learner"), "expected them only with auditor")],
)
def test_what_an_auditor_takes_is_for_it_alone(refused, prepared, given, said):
    assert said in refused("worker", *given, "-d", prepared)
