"""What `hushstream up`, `down` and `status` say, without any process of a deployment."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hushstream.cli.main import main
from hushstream.engine.declare.declaration import Fact
from hushstream.replay.runners import up
from hushstream.replay.runners.stream import StreamPlace, StreamSession, WorkerDied, free_port
from hushstream.replay.runners.up import (
    UpOptions,
    begun_with,
    data_beside,
    down,
    require_newest,
    why_not_ready,
    with_way_out,
)
from hushstream.schemas.errors import HushstreamError

REFUSED = (
    "learner: for 60 s: partition 0: the journal is refused: it ends at record 6, but a release was sent with record 7 "
    "(marks: topic m, folder f). Bring the newer topics back. To go on with what is here, start this "
    "worker with --accept-loss 0:aa:1 (releases made)"
)
OTHER = (
    "gateway ended with code 1: client: expected configuration 0c14 of deployment oldie as its workers have it, got "
    "5d: read it from the folder"
)


def test_who_uses_up_is_told_what_up_can_do(tmp_path):
    """Catches a refusal that names options of a worker alone."""
    older = str(with_way_out(tmp_path, HushstreamError(REFUSED)))
    assert "an older copy (it ends at record 6, but a release was sent with record 7): put the newest one back" in older
    other = str(with_way_out(tmp_path, HushstreamError(OTHER)))
    assert "expected configuration 5d, as hushstream " in other
    assert "got 0c14 in its records, which another release wrote: go on with that one" in other
    for said in (older, other):
        assert said.startswith(f"{tmp_path}: ")
        assert "--accept-loss" not in said
        assert len(said) < 400
    error = HushstreamError("anything else")
    assert with_way_out(tmp_path, error) is error


def test_an_older_copy_is_refused_and_a_kill_between_both_notes_makes_none(tmp_path, monkeypatch):
    """Before a first release no mark shows the age of a copy."""
    place = StreamPlace(tmp_path, None, None, data=tmp_path / "broker", marks=tmp_path / "marks")
    (tmp_path / "broker").mkdir()
    require_newest(place)
    said: list[str] = []
    up._count_moment(place, said.append)
    shutil.copytree(tmp_path / "broker", tmp_path / "yesterday")
    up._count_moment(place, said.append)
    require_newest(place)
    shutil.move(tmp_path / "broker", tmp_path / "today")
    shutil.copytree(tmp_path / "yesterday", tmp_path / "broker")
    with pytest.raises(HushstreamError, match=r"got an older copy, of 20.* Put the newest data back"):
        require_newest(place)
    (tmp_path / "marks" / "moment").unlink()
    require_newest(place)

    def killed(path, text):
        path.write_text(text, "utf-8")
        raise KeyboardInterrupt

    shutil.rmtree(tmp_path / "broker")
    shutil.move(tmp_path / "today", tmp_path / "broker")
    up._count_moment(place, said.append)
    monkeypatch.setattr(up, "keep", killed)
    with pytest.raises(KeyboardInterrupt):
        up._count_moment(place, said.append)
    require_newest(place)
    assert said == []


def test_the_command_that_goes_on_has_every_option_that_is_in_use(tmp_path):
    file = tmp_path / "shop.yaml"
    plain = UpOptions(config=file, data=data_beside(file))
    assert plain.command == f"hushstream up {file}"
    moved = UpOptions(
        config=file, data=tmp_path / "a b", marks=Path("m"), bootstrap="kafka:9092", security=Path("s"), port=1,
        broker_port=2, listen="0.0.0.0",
    )  # fmt: skip
    assert moved.command == (
        f"hushstream up {file} --data '{tmp_path / 'a b'}' --marks m --bootstrap kafka:9092 --security s --port 1 "
        "--broker-port 2 --listen 0.0.0.0"
    )


def test_the_screen_says_whose_model_version_0_is():
    generation, start = Fact("generation", 2, ""), Fact("started_from_slots", 40, "")
    for before, said in (
        ((), ""),
        ((generation,), ""),
        ((start,), "another deployment's model (version 0 here); "),
        ((generation, start), "the former generation's model (version 0 here); "),
    ):
        system: Any = SimpleNamespace(before=before)
        assert begun_with(system) == said


@contextmanager
def running(data: Path) -> Iterator[Path]:
    """A folder on which `up` seems to run, with a learner that says something."""
    (data / "logs").mkdir(parents=True)
    found = {"host": "127.0.0.1", "port": free_port(), "pid": os.getpid(), "processes": {"learner": 1}}
    (data / "up.json").write_text(
        json.dumps({**found, "command": "hushstream up shop.yaml --port 7"}), encoding="utf-8"
    )
    with up._locked(data):
        yield data / "logs" / "learner.log"


def test_status_says_why_nothing_answers(tmp_path, monkeypatch):
    with running(tmp_path / "data") as log:
        log.write_text("10:00 INFO a: begins\n", encoding="utf-8")
        assert why_not_ready(tmp_path / "data").startswith("nothing answers yet; see ")
        log.write_text("10:00 ERROR a: left the group: No space left on device\n", encoding="utf-8")
        assert why_not_ready(tmp_path / "data") == "learner: 10:00 ERROR a: left the group: No space left on device"
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, 1 << 30, 7))
        assert " is full (7 bytes are free): free some space; learner: " in why_not_ready(tmp_path / "data")


def test_down_gives_the_command_that_was_given(tmp_path, monkeypatch):
    with running(tmp_path / "data"):
        monkeypatch.setattr(os, "kill", lambda pid, number: None)
        held = iter([True, True, False])  # what runs has the lock, when it is asked for and once more
        monkeypatch.setattr(up, "_is_locked", lambda data: next(held))
        assert down(tmp_path / "data") == "hushstream up shop.yaml --port 7"


def test_a_taken_port_leaves_no_folder(tmp_path, capsys):
    file = tmp_path / "shop.yaml"
    file.write_text("deployment: shop", encoding="utf-8")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for detached in ((), ("--detach",)):
            with pytest.raises(SystemExit):
                main(["up", str(file), "--port", str(taken.getsockname()[1]), *detached])
            assert "--port: expected a free port" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


async def test_a_worker_that_cannot_go_on_is_told_at_once(tmp_path):
    """Catches a wait for a worker that only stays so that a Prometheus reads why it ends."""
    system: Any = SimpleNamespace(config=SimpleNamespace(deployment="m"), role_names=("learner",))
    session = StreamSession(system, StreamPlace(tmp_path, None, None))
    line = "cannot go on, and serves the reason as a metric for 60 s: partition 0: the journal is refused"
    session.spawn("learner", sys.executable, "-c", f"import time; print({line!r}, flush=True); time.sleep(60)")
    began = time.monotonic()
    try:
        with pytest.raises(WorkerDied, match=r"learner: for 60 s: partition 0: the journal is refused$"):
            await session.ready(lambda line: None)
        assert time.monotonic() - began < 30
    finally:
        await session._stop()
