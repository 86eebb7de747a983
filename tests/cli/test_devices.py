"""What whoever runs a deployment of devices types: its guarantee, and the next signing key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, load
from hushstream.agents.worker.roles import role_work
from hushstream.engine.devices.signing import SigningKeys
from hushstream.systems.p2b.device.agreement import Agreement
from hushstream.systems.p2b.guarantee.deployment import P2BSystem

EDGE = """deployment: shop
kind: edge
items: {capacity: 3}
features: {country: {kind: category, vocabulary: [de, fr]}}
expected_slots: 20000
slot: {sealed: true}
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


def test_the_guarantee_of_devices_is_a_page_of_its_own(
    cli: Any, refused: Callable[..., str], config: Callable[..., Path], edge: Path
) -> None:
    said = cli("guarantee", edge, "--edge").out
    headings = [line for line in said.splitlines()[6:] if line and not line.startswith(" ")]
    assert headings == ["One person, in a whole life", "Not protected", "Devices"]
    for part in (
        "What leaves a device: one slot in a life, of 109 bytes",
        "the gateway sees an address",
        "was cleared",
        "restored from an older copy",
        "ended at any moment",
        "forges slots",
        "no lift",
    ):
        assert part in said, part
    assert "What it gives" in cli("guarantee", edge).out
    assert "Devices" in cli("guarantee", edge).out
    assert all(name.startswith("devices_") for name in cli("guarantee", edge, "--edge", "--json").json["facts"])
    assert "kind edge" in refused("guarantee", config(), "--edge")


def test_the_next_signing_key_is_published_for_a_version_to_come(
    cli: Any, refused: Callable[..., str], deployment: Path, edge: Path
) -> None:
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


def test_only_keys_whose_public_halves_are_published_are_published(
    refused: Callable[..., str], deployment: Path
) -> None:
    publish = ("keys", "publish", "--deployment", deployment)
    assert "expected sealing or signing" in refused(*publish, "--zone", "shuffler")
    assert "only with --zone signing" in refused(*publish, "--from-version", "3")
