"""Erasing a user from the command line."""

from __future__ import annotations

import asyncio
import io
import os

import pytest

from hushstream.agents.worker.deployment import KeySource, load, prepare, read_config
from hushstream.agents.worker.membership import GroupPlace
from hushstream.agents.worker.roles import all_machines
from hushstream.client import connect
from hushstream.ops.export import export_copy
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import DirectDriver
from hushstream.replay.runners.memory import MemoryLog

ERASED = """\
deployment: erased
items: {capacity: 4}
features: {dimension: 4, digits: 1}
expected_slots: 20
encoder: {codes: 4}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared deployment; made by the function behind the command, once."""
    folder = tmp_path_factory.mktemp("erased")
    (folder / "erased.yaml").write_text(ERASED, encoding="utf-8")
    prepare(folder / "deployment", read_config(folder / "erased.yaml"), public_dataset="synthetic")
    return folder / "deployment"


def test_a_tombstone_that_nobody_has_folded_is_exit_code_one_unless_nobody_waits(cli, bootstrap, folder):
    assert cli("topics", "apply", "-d", folder, "--bootstrap", bootstrap).code == 0
    options = ("-d", folder, "--bootstrap", bootstrap)
    waited = cli("forget", "ann-canary", *options, "--wait", "0.2")
    assert (waited.code, waited.err) == (1, "")
    assert "no learner has folded it yet" in waited.out
    assert "no record on contexts names this user" in waited.out
    assert "ann-canary" not in waited.out
    sent = cli("forget", "ann-canary", *options, "--wait", "0", "--json")
    assert sent.code == 0
    assert (sent.json["places"], sent.json["folded"]) == ([[0, 1]], False)
    assert len(sent.json["stays"]) == 3


def test_a_user_of_whom_there_are_records_is_known(cli, bootstrap, folder):
    async def visit():
        async with connect(bootstrap, "erased") as client:
            await client.decide("visit-1", "bob", [0.4, 0.3, 0.2, 0.1], baseline=0, timeout=0.1)

    cli("topics", "apply", "-d", folder, "--bootstrap", bootstrap)
    asyncio.run(visit())
    found = {
        name: cli("forget", name, "-d", folder, "--bootstrap", bootstrap, "--wait", "0", "--json").json["known"]
        for name in ("bob", "bobby")
    }
    assert found == {"bob": True, "bobby": False}


def test_what_workers_remember_of_a_broker_that_is_gone_is_dropped_only_when_its_topics_are(
    cli, refused, bootstrap, folder
):
    (folder / "state" / "learner").mkdir(parents=True)
    cli("topics", "apply", "-d", folder, "--bootstrap", bootstrap)
    assert "stop that broker first" in refused("dev", "reset", "-d", folder, "--bootstrap", bootstrap, "--yes")
    assert "expected a broker on this machine" in refused("dev", "reset", "-d", folder, "-b", "192.0.2.1:9092")
    gone = ("dev", "reset", "-d", folder, "--bootstrap", "127.0.0.1:1")
    # Of a worker on another broker only its place in the folder is seen.
    place = GroupPlace(folder / "state" / "learner", "shop.learner")
    place.claim()
    assert "expected no worker on" in refused(*gone, "--yes")
    place.leave()
    assert "would remove (say --yes) what workers of learner remember" in cli(*gone).out
    assert (folder / "state").exists()
    assert cli(*gone, "--yes", "--json").json["removed"] is True
    assert not (folder / "state").exists()
    assert (folder / "deployment.yaml").exists()
    assert "nothing to remove" in cli(*gone, "--yes").out


def test_the_account_is_read_from_standard_input_so_that_no_shell_keeps_it(cli, refused, folder, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert refused("forget", "-", "-d", folder, "--export", tmp_path) == (
        "hushstream: user: expected 1 to 128 bytes, got 0\n"
    )


def test_an_export_without_a_tombstone_is_refused_in_one_line(refused, folder, tmp_path):
    system, log = load(folder), MemoryLog()
    DirectDriver(log, all_machines(system, KeySource(seed=1)), os.urandom(32)).pump()
    export_copy(LogCopy.of(log), system, tmp_path / "copy")
    said = refused("forget", "ann-canary", "-d", folder, "--export", tmp_path / "copy")
    assert "expected an export made after `hushstream forget`" in said
    assert "ann-canary" not in said


def test_a_soak_prints_its_curve_and_refuses_to_go_beyond_its_cap(cli):
    small = ("--users", "2500", "--visits", "1", "--interactions", "2", "--resident", "300")
    found = cli("soak", *small, "--json")
    assert found.code == 0
    assert found.json["points"][-1]["decisions"] == 5000
    beyond = cli("soak", *small, "--cap", "0.1")
    assert beyond.code == 1
    assert beyond.err.splitlines()[-1].startswith("hushstream: expected at most 107374182 bytes, got ")
