"""Every command that a manifest gives to a container is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from hushstream.cli.main import app


def parse(arguments: list[str]) -> None:
    """Parse as the command line does, without running; a wrong option or value is an error."""
    command = get_command(app)
    while below := getattr(command, "commands", None):
        name, *arguments = arguments
        command = below[name]
    command.make_context(command.name, [str(argument) for argument in arguments])


def of_compose(compose: Any) -> Iterator[list[str]]:
    for service in compose["services"].values():
        if service["image"].startswith("hushstream:"):
            if service.get("entrypoint", [""])[0] == "python":
                continue  # a script of the image, which test_compose runs
            if "command" in service:
                yield service["command"]
            else:
                # test -e KEY || hushstream ...
                yield shlex.split(service["entrypoint"][-1].partition("|| hushstream")[2])


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


def of_readme(text: str) -> Iterator[list[str]]:
    """What the blocks of a page give to ``hushstream``: on its own, in a container's shell, or as its entry point."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for found in re.findall(r"(?:^|&& )hushstream ([^#&|>]*)", line):
                yield shlex.split(found)
            for found in re.findall(r"--entrypoint hushstream \S+ ([^#&|>]*)", line):
                yield shlex.split(found)


@pytest.mark.parametrize(
    ("page", "verbs"), [("compose", {"prepare", "keys"}), ("kubernetes", {"prepare", "keys", "topics"})]
)
def test_the_command_line_takes_every_command_of_the_pages(page: str, verbs: set[str], deploy: Path) -> None:
    commands = list(of_readme((deploy / page / "README.md").read_text(encoding="utf-8")))
    assert {command[0] for command in commands} >= verbs
    for command in commands:
        parse(command)


def test_an_option_that_is_not_there_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["worker", "learner", "--deployment", "x", "--metrics-prot", "1"])
