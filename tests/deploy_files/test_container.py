"""The image: what its recipe says, and the health command against a real endpoint of metrics."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hushstream.agents.observe.metrics import Labels, Metrics


def instructions(path: Path) -> list[tuple[str, str]]:
    """Instruction and argument of each line of a Containerfile; continued lines are joined, comments dropped."""
    text = "\n".join(
        line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")
    )
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


@pytest.fixture
def recipe(deploy: Path) -> list[tuple[str, str]]:
    return instructions(deploy / "container" / "Containerfile")


def test_every_instruction_is_one_that_a_builder_knows(recipe):
    known = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE"}
    known |= {"STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in recipe} <= known


def test_the_base_is_pinned_and_only_the_last_stage_is_shipped(recipe):
    (base,) = [rest.partition("=")[2] for word, rest in recipe if word == "ARG"]
    assert re.fullmatch(r"docker\.io/library/python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    stages = [rest for word, rest in recipe if word == "FROM"]
    assert stages == ["${PYTHON} AS build", "${PYTHON} AS run"]
    last = recipe[max(i for i, (word, _) in enumerate(recipe) if word == "FROM") :]
    copied = [rest for word, rest in last if word == "COPY"]
    assert copied == [
        "--from=build /opt/hushstream /opt/hushstream",
        "deploy/container/health.py /opt/hushstream/",
    ]
    assert not any("pip" in rest for word, rest in last if word == "RUN"), "the shipped stage installs nothing"


def test_what_is_installed_is_the_wheel_at_the_locked_versions(recipe):
    (build,) = [rest for word, rest in recipe if word == "RUN" and "pip wheel" in rest]
    assert "pip install --require-hashes --requirement requirements-run.lock" in build
    assert "pip install --no-deps /wheel/*.whl" in build
    assert "pip install --require-hashes --requirement requirements-build.lock" in build
    assert "pip wheel --no-deps --no-build-isolation" in build


def test_it_runs_as_a_numbered_user_and_says_how_it_is(recipe):
    said = dict(recipe)
    assert said["USER"] == "10001:10001"
    assert [word for word, _ in recipe].index("USER") > [word for word, _ in recipe].index("COPY")
    assert "health.py" in said["HEALTHCHECK"]
    assert said["ENTRYPOINT"] == '["hushstream"]'
    volumes = ("data", "state", "marks")
    assert json.loads(said["VOLUME"]) == [f"/var/lib/hushstream/{name}" for name in volumes]


def test_no_secret_enters_the_build(deploy, recipe):
    lines = (deploy / "container" / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "everything is left out but what is named"
    assert {"**/*.key", "**/*.pem"} <= set(rules)
    named = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {part for word, rest in recipe if word == "COPY" and "--from" not in rest for part in rest.split()[:-1]}
    assert copied == named
    assert all((deploy.parent / name).exists() for name in named)
    assert not [rest for word, rest in recipe if word in ("ENV", "ARG") and re.search("PASSWORD|SECRET|TOKEN", rest)]


def health(deploy: Path, port: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(deploy / "container" / "health.py"), *arguments],
        env={**os.environ, "HUSHSTREAM_METRICS_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        encoding="utf-8",
    )


class Worker:
    """Served metrics, and a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = Metrics(Labels("learner", partitions=4), clock=lambda: self.now)
        port, _ = self.metrics.serve("127.0.0.1", 0, None)
        assert port is not None
        self.port = port


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.metrics.close()


def test_a_worker_is_ready_once_it_runs_every_partition_that_it_was_given(deploy, worker):
    def said(assigned: int, held: int, stopped: int) -> tuple[int, str]:
        worker.metrics.partitions(assigned, held, stopped)
        answer = health(deploy, worker.port)
        return answer.returncode, answer.stderr

    before = health(deploy, worker.port)
    assert (before.returncode, before.stderr.partition(";")[0]) == (1, "unhealthy: no partition was given to it")
    assert said(0, 0, 0) == (1, before.stderr)
    assert said(3, 1, 0) == (1, "unhealthy: 2 of 3 partitions are being recovered\n")
    assert said(3, 3, 0) == (0, "")
    assert said(3, 2, 1) == (1, "unhealthy: 1 partitions were stopped; the worker's log says why\n")


def test_a_worker_that_no_broker_answers_is_not_ready_and_is_left_alive(deploy, worker):
    worker.metrics.partitions(assigned=2, held=2, stopped=0)
    for sign in ("fetch_age_seconds", "group_commit_age_seconds"):
        worker.metrics.health(**{sign: 25.0})
        assert health(deploy, worker.port).returncode == 0
        worker.metrics.health(**{sign: 30.0})
        answer = health(deploy, worker.port)
        assert (answer.returncode, answer.stderr) == (1, "unhealthy: no broker has answered for 30 s\n")
        assert health(deploy, worker.port, "--live").returncode == 0, "a restart brings no broker back"
        worker.metrics.health(**{sign: 0.0})


def test_a_worker_is_alive_however_long_its_recovery_takes_and_dead_when_its_loop_hangs(deploy, worker):
    worker.metrics.partitions(assigned=2, held=0, stopped=0)
    assert health(deploy, worker.port, "--live").returncode == 0
    worker.metrics.partitions(assigned=2, held=2, stopped=0)
    worker.now = 59
    assert [health(deploy, worker.port, *live).returncode for live in ((), ("--live",))] == [0, 0]
    worker.now = 75
    for live in ((), ("--live",)):
        answer = health(deploy, worker.port, *live)
        assert (answer.returncode, answer.stderr) == (1, "unhealthy: the event loop has not turned for 70 s\n")
    worker.metrics.beat()
    assert health(deploy, worker.port).returncode == 0


def test_a_worker_that_does_not_answer_is_not_healthy(deploy):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        answer = health(deploy, listener.getsockname()[1])
    assert answer.returncode == 1
    assert "expected metrics at http://127.0.0.1" in answer.stderr


def test_what_the_pages_write_secrets_into_is_never_committed(deploy):
    ignored = (deploy.parent / ".gitignore").read_text(encoding="utf-8").split()
    pages = [(deploy / page / "README.md").read_text(encoding="utf-8") for page in ("compose", "kubernetes")]
    for page in pages:
        for name in re.findall(r"(?:> |keys generate |--from-file=)(\S*(?:grafana-password|\.key|keys))\b", page):
            parts = Path(name).parts
            hits = [
                part
                for part in parts
                if any(fnmatch.fnmatch(f"{part}{end}", rule) for rule in ignored for end in ("", "/"))
            ]
            assert hits, name
