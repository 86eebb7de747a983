"""Commands for devices, their sealing and signing keys, and users' deletions."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, load, prepare, read_config
from hushstream.agents.worker.roles import all_machines, role_work
from hushstream.client import connect
from hushstream.engine.devices.sealing import ContentOpener
from hushstream.engine.devices.signing import SigningKeys
from hushstream.ops.export import export_copy
from hushstream.ops.log_copy import LogCopy
from hushstream.privacy.key_files import load_ring
from hushstream.privacy.keys import key_path
from hushstream.replay.runners.direct import DirectDriver, MemoryLog
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.edge.device import Agreement

EDGE = """deployment: shop
kind: edge
items: {capacity: 3}
features: {country: {kind: category, vocabulary: [de, fr]}}
expected_slots: 20000
feedback: {click_rate: 0.2}
release: {sums: fresh}
"""


@pytest.fixture
def edge(tmp_path: Path) -> Path:
    path = tmp_path / "edge.yaml"
    path.write_text(EDGE, encoding="utf-8")
    return path


@pytest.fixture
def deployment(cli: Any, edge: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    for zone in ("shuffler", "sealing", "signing"):
        assert cli("keys", "generate", folder / "keys", "--zone", zone).code == 0
    assert cli("prepare", edge, folder).code == 0
    return folder


def signing_of(folder: Path) -> SigningKeys:
    core = load(folder).core
    assert isinstance(core, P2BSystem)
    assert core.signing is not None
    return core.signing


def test_the_guarantee_of_devices_is_a_page_of_its_own(cli, refused, config, edge):
    said = cli("guarantee", edge, "--edge").out
    headings = [line for line in said.splitlines()[6:] if line and not line.startswith(" ")]
    assert headings == ["One person, in a whole life", "It holds only if", "Not protected", "Devices"]
    for part in (
        "What leaves a device: one report in a life, of 109 bytes",
        "the gateway sees an address",
        "was cleared",
        "restored from an older copy",
        "ended at any moment",
        "forges reports",
        "no lift",
    ):
        assert part in said, part
    assert "What it gives" in cli("guarantee", edge, "--details").out
    assert "Devices" in cli("guarantee", edge, "--details").out
    assert all(name.startswith("devices_") for name in cli("guarantee", edge, "--edge", "--json").json["facts"])
    assert "kind edge" in refused("guarantee", config(), "--edge")


def test_devices_have_no_learner_workers(cli, refused, deployment):
    """A hosted learner once decided on clear contexts under it, and the guarantee said that they stayed on devices."""
    where = ("-d", deployment, "--bootstrap", "127.0.0.1:1")
    line = refused("worker", "learner", *where, "--connect-timeout", "0.2")
    assert "expected a role of deployment shop (shuffler, aggregator), got 'learner'; users' devices do the" in line
    assert "got kind edge, where all of a user's state is on the user's device" in refused("forget", "ann", *where)
    held = {content["topic"] for content in cli("guarantee", deployment, "--json").json["seen"]}
    assert held == {"reports", "window-sums", "models", "statements"}
    assert cli("statement", "--deployment", deployment, "--json").json["guarantee"]["mechanism"]["deployment"] == "edge"


def test_the_next_signing_key_is_published_for_a_version_to_come(cli, refused, deployment, edge):
    keys = deployment / "keys"
    before, publish = signing_of(deployment), ("keys", "publish", "--deployment", deployment, "--zone", "signing")
    digest, agreement = load(deployment).digest, (deployment / "agreement.json").read_bytes()
    assert "--from-version: expected the first version" in refused(*publish)
    assert "published yet, got one that is; rotate it first" in refused(*publish, "--from-version", "5")
    assert cli("keys", "rotate", "signing", keys).code == 0
    made = cli(*publish, "--from-version", "5", "--json").json
    after = signing_of(deployment)
    assert (made["from_version"], made["public_key"]) == (5, after.keys[1].public_key.hex())
    assert after.keys[:1] == before.keys
    assert [after.number_at(version) for version in (1, 4, 5, 6)] == [0, 0, 1, 1]
    assert load(deployment).digest == digest
    assert cli("prepare", edge, deployment).code == 0
    assert (deployment / "agreement.json").read_bytes() == agreement, "devices know the first key and follow from it"
    assert Agreement.read(agreement).signing.keys == before.keys
    role_work("aggregator", load(deployment), KeySource(keys)).make_machine(0)
    assert "rotate it first" in refused(*publish, "--from-version", "9")
    assert cli("keys", "rotate", "signing", keys).code == 0
    assert "versions that grow" in refused(*publish, "--from-version", "5")
    said = cli(*publish, "--from-version", "9").out
    assert said.startswith(f"{deployment / 'signing.json'}: models are signed with ")
    assert "from version 9 on" in said
    assert "aggregators first" in said


def test_only_keys_whose_public_halves_are_published_are_published(refused, deployment):
    publish = ("keys", "publish", "--deployment", deployment)
    assert "expected sealing or signing" in refused(*publish, "--zone", "shuffler")
    assert "only with --zone signing" in refused(*publish, "--from-version", "3")


def sealed_of(folder: Path) -> P2BSystem:
    """The folder's deployment, as its machines have it."""
    core = load(folder).core
    assert isinstance(core, P2BSystem)
    return core


def test_the_next_key_is_published_once_for_a_time_to_come(cli, refused, deployment, edge):
    folder, keys = deployment, deployment / "keys"
    before = sealed_of(folder)
    publish = ("keys", "publish", "--deployment", folder)
    assert "published yet, got one that is; rotate it first" in refused(*publish)
    assert cli("keys", "rotate", "sealing", keys).code == 0
    made = cli(*publish, "--json").json
    assert "rotate it first" in refused(*publish)
    system, after = load(folder), sealed_of(folder)
    assert before.sealing is not None
    assert after.sealing is not None
    assert after.digest == before.digest
    assert after.sealing.keys[:1] == before.sealing.keys
    ring = load_ring(key_path(keys, "sealing"))
    assert made["public_key"] == after.sealing.keys[1].public_key.hex() == ContentOpener(ring.of(1)).public_key.hex()
    assert made["from_period"] == after.sealing.keys[1].from_period
    assert made["begins"].endswith("+00:00")
    assert cli("prepare", edge, folder, "--keys", keys).code == 0
    assert load(folder).digest == before.digest
    role_work("shuffler", system, KeySource(keys)).make_machine(0)
    assert cli("keys", "retire", "sealing", keys, "--epoch", "0").code == 0
    role_work("shuffler", system, KeySource(keys)).make_machine(0)
    assert cli("keys", "rotate", "sealing", keys).code == 0
    assert cli(*publish, "--after-hours", "48").out.startswith(f"{folder / 'sealing.json'}: slots are sealed to ")


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


def test_a_deletion_that_nobody_has_folded_is_exit_code_one_unless_nobody_waits(cli, bootstrap, folder):
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


def test_the_account_is_read_from_standard_input_so_that_no_shell_keeps_it(cli, refused, folder, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert refused("forget", "-", "-d", folder, "--export", tmp_path) == (
        "hushstream: user: expected 1 to 128 bytes in one line, got 0\n"
    )


def test_an_export_without_a_deletion_is_refused_in_one_line(refused, folder, tmp_path):
    system, log = load(folder), MemoryLog()
    DirectDriver(log, all_machines(system, KeySource(seed=1)), os.urandom(32)).pump()
    export_copy(LogCopy.of(log), system, tmp_path / "copy")
    said = refused("forget", "ann-canary", "-d", folder, "--export", tmp_path / "copy")
    assert "expected an export made after `hushstream forget`" in said
    assert "ann-canary" not in said
