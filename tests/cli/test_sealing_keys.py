"""The sealing key turns under a deployment: turned on the shuffler, published for a time to come, destroyed later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hushstream.agents.worker.deployment import KeySource, load
from hushstream.agents.worker.roles import role_work
from hushstream.privacy.key_files import load_ring
from hushstream.privacy.keys import key_path
from hushstream.systems.p2b.contribution.sealed import SealOpener
from hushstream.systems.p2b.guarantee.deployment import P2BSystem


def sealed_of(folder: Path) -> P2BSystem:
    """The folder's deployment, as its machines have it."""
    core = load(folder).core
    assert isinstance(core, P2BSystem)
    return core


def test_the_next_key_is_published_once_for_a_time_to_come(
    cli: Any, refused: Callable[..., str], config: Callable[..., Path], tmp_path: Path
) -> None:
    folder, keys = tmp_path / "shop", tmp_path / "shop" / "keys"
    for zone in ("shuffler", "sealing"):
        assert cli("keys", "generate", keys, "--zone", zone).code == 0
    assert cli("prepare", config(add="slot: {sealed: true}\n"), folder).code == 0
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
    assert made["public_key"] == after.sealing.keys[1].public_key.hex() == SealOpener(ring.of(1)).public_key.hex()
    assert made["from_period"] == after.sealing.keys[1].from_period
    assert made["begins"].endswith("+00:00")
    assert cli("prepare", config(add="slot: {sealed: true}\n"), folder, "--keys", keys).code == 0
    assert load(folder).digest == before.digest
    role_work("shuffler", system, KeySource(keys)).make_machine(0)
    assert cli("keys", "retire", "sealing", keys, "--epoch", "0").code == 0
    role_work("shuffler", system, KeySource(keys)).make_machine(0)
    assert cli("keys", "rotate", "sealing", keys).code == 0
    assert cli(*publish, "--after-hours", "48").out.startswith(f"{folder / 'sealing.json'}: slots are sealed to ")
