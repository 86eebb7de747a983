"""The Kubernetes manifests of a deployment that seals its slots; whoever writes them holds none of its keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.privacy.keys import generate_keys


def test_a_deployment_that_seals_its_slots_is_built_without_a_key(deploy: Path, script: Any, tmp_path: Path) -> None:
    values = {"deployment": "sealed", "items": {"capacity": 3}, "features": {"dimension": 4}, "expected_slots": 1_000}
    config = parse_config(values)
    generate_keys(tmp_path / "keys", ("sealing",))
    sealed = replace(config, slot=replace(config.slot, sealed=True))
    for name, made in (("open", config), ("sealed", sealed)):
        prepare(tmp_path / name / "deployment", made, keys=KeySource(tmp_path / "keys"))
        answer = script(deploy / "kubernetes" / "build.py", tmp_path / name)
        assert answer.returncode == 0, answer.stderr
    users = [(tmp_path / name / "users.yaml").read_text(encoding="utf-8") for name in ("open", "sealed")]
    assert users[0] == users[1]
