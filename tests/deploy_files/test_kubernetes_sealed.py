"""The Kubernetes manifests of a deployment that seals its slots; whoever writes them holds none of its keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hushstream.agents.worker.deployment import KeySource, prepare, read_config
from hushstream.privacy.keys import generate_keys


def test_a_deployment_that_seals_its_slots_is_built_without_a_key(deploy: Path, script: Any, tmp_path: Path) -> None:
    shop = deploy / "kubernetes" / "base" / "shop"
    config = read_config(shop / "deployment" / "deployment.yaml")
    generate_keys(tmp_path / "keys", ("sealing",))
    sealed = replace(config, slot=replace(config.slot, sealed=True))
    prepare(tmp_path / "shop" / "deployment", sealed, keys=KeySource(tmp_path / "keys"))
    answer = script(deploy / "kubernetes" / "build.py", tmp_path / "shop")
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "shop" / "users.yaml").read_text(encoding="utf-8") == (shop / "users.yaml").read_text(
        encoding="utf-8"
    )
