"""The image: what its recipe says, and the health command against a real endpoint of metrics."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hushstream.agents.metrics import Labels, Metrics


def instructions(path: Path) -> list[tuple[str, str]]:
    """Instruction and argument of each line of a Containerfile; continued lines are joined, comments dropped."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


@pytest.fixture
def recipe(deploy: Path) -> list[tuple[str, str]]:
    return instructions(deploy / "container" / "Containerfile")


def test_every_instruction_is_one_that_a_builder_knows(recipe: list[tuple[str, str]]) -> None:
    known = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE"}
    known |= {"STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in recipe} <= known


def test_the_base_is_pinned_and_only_the_last_stage_is_shipped(recipe: list[tuple[str, str]]) -> None:
    (base,) = [rest.partition("=")[2] for word, rest in recipe if word == "ARG"]
    assert re.fullmatch(r"docker\.io/library/python:3\.11\.\d+-slim-\w+", base)
    stages = [rest for word, rest in recipe if word == "FROM"]
    assert stages == ["${PYTHON} AS build", "${PYTHON} AS run"]
    last = recipe[max(i for i, (word, _) in enumerate(recipe) if word == "FROM") :]
    copied = [rest for word, rest in last if word == "COPY"]
    assert copied == [
        "--from=build /opt/hushstream /opt/hushstream",
        "deploy/container/health.py /opt/hushstream/health.py",
    ]
    assert not any("pip" in rest for word, rest in last if word == "RUN"), "the shipped stage installs nothing"


def test_what_is_installed_is_the_wheel_at_the_locked_versions(recipe: list[tuple[str, str]]) -> None:
    (build,) = [rest for word, rest in recipe if word == "RUN" and "pip wheel" in rest]
    assert "pip install --constraint requirements.lock /wheel/*.whl" in build


def test_it_runs_as_a_numbered_user_and_says_how_it_is(recipe: list[tuple[str, str]]) -> None:
    said = dict(recipe)
    assert said["USER"] == "10001:10001"
    assert [word for word, _ in recipe].index("USER") > [word for word, _ in recipe].index("COPY")
    assert "health.py" in said["HEALTHCHECK"]
    assert said["ENTRYPOINT"] == '["hushstream"]'
    assert said["VOLUME"] == '["/var/lib/hushstream/state"]'


def test_no_secret_enters_the_build(deploy: Path, recipe: list[tuple[str, str]]) -> None:
    lines = (deploy / "container" / "Containerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "everything is left out but what is named"
    assert {"**/*.key", "**/*.pem"} <= set(rules)
    named = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {part for word, rest in recipe if word == "COPY" and "--from" not in rest for part in rest.split()[:-1]}
    assert copied == named
    assert all((deploy.parent / name).exists() for name in named)
    assert not [rest for word, rest in recipe if word in ("ENV", "ARG") and re.search("PASSWORD|SECRET|TOKEN", rest)]


def health(deploy: Path, port: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(deploy / "container" / "health.py")],
        env={**os.environ, "HUSHSTREAM_METRICS_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


def test_a_worker_is_healthy_while_it_answers_and_runs_what_was_assigned(deploy: Path) -> None:
    metrics = Metrics(Labels("learner", partitions=4))
    port, _ = metrics.serve("127.0.0.1", 0, None)
    assert port is not None
    try:
        metrics.partitions(held=3, stopped=0)
        assert health(deploy, port).returncode == 0
        metrics.partitions(held=2, stopped=1)
        answer = health(deploy, port)
        assert (answer.returncode, answer.stderr) == (
            1,
            "unhealthy: 1 partitions were stopped; the worker's log says why\n",
        )
    finally:
        metrics.close()


def test_a_worker_that_does_not_answer_is_not_healthy(deploy: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        answer = health(deploy, listener.getsockname()[1])
    assert answer.returncode == 1
    assert "expected metrics at http://127.0.0.1" in answer.stderr
