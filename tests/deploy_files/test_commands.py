"""Every command that a manifest gives to a container is one that the command line takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import parse


def of_compose(compose: Any) -> Iterator[list[str]]:
    for service in compose["services"].values():
        if service["image"].startswith("hushstream:"):
            if service.get("entrypoint", [""])[0] == "python":
                continue  # a script of the image, which test_compose runs
            if "command" in service:
                yield service["command"]
            else:
                # test -e KEY || hushstream ...
                for step in service["entrypoint"][-1].split(";"):
                    yield shlex.split(step.partition("hushstream ")[2])


def of_kubernetes(objects: list[Any]) -> Iterator[list[str]]:
    for one in objects:
        if one["kind"] == "StatefulSet":
            for container in one["spec"]["template"]["spec"]["containers"]:
                yield container["args"]


def test_the_command_line_takes_every_command_of_compose(deploy: Path, documents: Any) -> None:
    (compose,) = documents(deploy / "compose" / "compose.yaml")
    commands = list(of_compose(compose))
    assert sorted({command[0] for command in commands}) == ["keys", "topics", "worker"]
    for command in commands:
        parse(command)


@pytest.mark.parametrize("example", ["shop", "circle"])
def test_the_command_line_takes_every_command_of_kubernetes(example: str, deploy: Path, documents: Any) -> None:
    commands = list(of_kubernetes(documents(deploy / "kubernetes" / "base" / example / "workers.yaml")))
    assert len(commands) == 3
    for command in commands:
        parse(command)


def test_an_option_that_is_not_there_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["worker", "learner", "--deployment", "x", "--metrics-prot", "1"])
