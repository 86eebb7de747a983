"""Files for a cluster whose slots are sealed, and commands that deployment files name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from command_line import parse
from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.privacy.keys import generate_keys


def test_a_deployment_that_seals_its_slots_is_built_without_a_key(deploy, script, tmp_path):
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


def of_kubernetes(objects: list[Any]) -> Iterator[list[str]]:
    for one in objects:
        if one["kind"] == "StatefulSet":
            for container in one["spec"]["template"]["spec"]["containers"]:
                yield container["args"]


@pytest.mark.parametrize("example", ["shop", "circle"])
def test_the_command_line_takes_every_command_of_kubernetes(example, deploy, documents):
    commands = list(of_kubernetes(documents(deploy / "kubernetes" / "base" / example / "workers.yaml")))
    assert len(commands) == 3
    for command in commands:
        parse(command)


def test_an_option_that_is_not_there_would_be_found():
    with pytest.raises(Exception, match="No such option"):
        parse(["worker", "learner", "--deployment", "x", "--metrics-prot", "1"])
