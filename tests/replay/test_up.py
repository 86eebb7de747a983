"""`hushstream up`: from a file to a service, over kill -9 of all of it, from no older copy, to another broker."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import load
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy
from hushstream.replay.runners.stream import free_port
from hushstream.schemas import codec
from patience import patience

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]
ITEMS = ("boots", "tent", "mug")


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from hushstream.replay.runners.up import UpOptions, up
def say(line):
    print(line, flush=True)
    if line.startswith(sys.argv[5]):
        os.kill(os.getpid(), signal.SIGKILL)
file, data = map(Path, sys.argv[1:3])
ports = dict(port=int(sys.argv[3]), broker_port=int(sys.argv[4]))
asyncio.run(up(UpOptions(config=file, data=data, agreed=lambda told: True, **ports), say))
"""
STEPS = ("ending", "preparing", "closing", "generation 1 is closed", "generation 2 begins", "starting a broker")


def commands() -> Iterator[bytes]:
    """The command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


class Shop:
    """A shop of one's own: a file, and the commands on it."""

    def __init__(self, folder: Path) -> None:
        self.file, self.data, self._state = folder / "shop.yaml", folder / "shop.data", folder / "state"
        demo = (files("hushstream.replay.demo") / "demo.yaml").read_text(encoding="utf-8")
        name = f"shop{secrets.token_hex(4)}"
        self.file.write_text(demo.replace("deployment: demo", f"deployment: {name}"), encoding="utf-8")
        self.port, self.broker_port = free_port(), free_port()

    def command(self, *arguments: str, code: int = 0) -> str:
        environment = {**os.environ, "XDG_STATE_HOME": str(self._state)}
        ran = subprocess.run(
            [sys.executable, "-m", "hushstream.cli", *arguments],
            env=environment, capture_output=True, text=True, encoding="utf-8", timeout=patience(150), check=False,
        )  # fmt: skip
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def up(self, *words: str, code: int = 0, **changed: int | str) -> str:
        ports = {"port": self.port, "broker-port": self.broker_port} | {
            k.replace("_", "-"): v for k, v in changed.items()
        }
        options = [word for name, port in ports.items() for word in (f"--{name}", str(port))]
        return self.command("up", str(self.file), *options, *words, "--detach", code=code)

    def killed_at(self, said: str) -> str:
        """What a changed file's `up` says that is killed as soon as it says a line that begins like this."""
        ports = (str(self.port), str(self.broker_port))
        environment = {**os.environ, "XDG_STATE_HOME": str(self._state)}
        ran = subprocess.run(
            [sys.executable, "-c", KILLED, str(self.file), str(self.data), *ports, said],
            env=environment, capture_output=True, text=True, encoding="utf-8", timeout=patience(150), check=False,
        )  # fmt: skip
        assert ran.returncode == -signal.SIGKILL, ran.stdout + ran.stderr
        while any(str(self.data).encode() in one for one in commands()):  # its processes end themselves
            time.sleep(0.1)
        return ran.stdout

    def visits(self, users: str) -> None:
        """Five visits of each of twenty users: each owes one slot."""
        for number in range(100):
            visit = {"country": "de", "age": 30, "hour": 10, "interests": ["sport"]}
            user, event = f"{users}{number % 20}", f"{users}-{number}-{secrets.token_hex(4)}"
            assert self.ask("decide", {"event_id": event, "user": user, "context": visit})["logged"]

    def released(self, generation: Path, bootstrap: str) -> list[int]:
        """The slots of each released window, after all that was published was found equal."""
        place = ["-d", str(generation / "deployment"), "-b", bootstrap]
        verified = self.command("verify", *place)
        assert " equal" in verified
        assert "changed" not in verified
        system = load(generation / "deployment")
        logs = copy(Connection(bootstrap, f"{system.config.deployment}."), system.partitions, {"window-sums"})
        return [codec.decode(record.value)[1]["slots"] for record in logs.records(["window-sums"])]

    def left(self, generation: int) -> Any:
        """What the generation before left to this one."""
        return json.loads((self.data / f"generation-{generation}" / "deployment" / "predecessor.json").read_bytes())

    def marks(self) -> set[str]:
        """Names of the release marks outside the data: each says how far a journal has released."""
        return {mark.name for mark in self._state.glob("hushstream/marks/*/*/*.json")}

    @property
    def place(self) -> list[str]:
        return ["-d", str(self.data / "deployment"), "-b", f"127.0.0.1:{self.broker_port}"]

    def decide(self, number: int) -> Any:
        visit = {"country": "de", "age": 30, "hour": 10, "interests": ["sport"]}
        return self.ask("decide", {"event_id": f"e{number}", "user": f"u{number % 20}", "context": visit})

    def ask(self, call: str, body: Any, **headers: str) -> Any:
        told = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/{call}", json.dumps(body).encode(), told)
        with urllib.request.urlopen(request, timeout=patience(20)) as answer:
            return json.load(answer)

    def offer(self, *items: str, **rules: Any) -> Any:
        """What the owner of the shop does, with the token of `up`."""
        token = (self.data / "operators").read_text(encoding="utf-8").split()[1]
        offered = [{"item": one, **rules} for one in items]
        return self.ask("catalogue", {"items": offered}, Authorization=f"Bearer {token}")

    def asked_as_in_the_readme(self) -> str:
        """What the README's application prints."""
        page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").replace(":8080/", f":{self.port}/")
        command = ["node", "--input-type=module", "--eval", page.partition("```js\n")[2].partition("```")[0]]
        return subprocess.check_output(command, encoding="utf-8", timeout=patience(20))

    def kill_all(self) -> None:
        running = json.loads((self.data / "up.json").read_text(encoding="utf-8"))
        for pid in (running["pid"], *running["processes"].values()):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def another_broker(folder: Path) -> Iterator[str]:
    """The Kafka to which the shop moves: that of the environment, or a second durable broker."""
    bootstrap = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP") or f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "hushstream.broker", "--port", bootstrap.rpartition(":")[2], "--data", str(folder)]
    if "HUSHSTREAM_TEST_BOOTSTRAP" in os.environ:
        yield bootstrap
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        broker.stdout.readline()
        yield bootstrap
        broker.terminate()


def test_a_shop_is_up_survives_a_kill_of_everything_refuses_an_earlier_copy_and_moves(tmp_path):
    """Catches a process that outlives `up`, marks within the data, and a restart or a move that loses or repeats."""
    shop = Shop(tmp_path)
    assert "expected a deployment that is up, got none" in shop.command("status", str(shop.file), code=1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "--port: expected a free port" in shop.up(code=1, port=taken.getsockname()[1])
    written = shop.file.read_text(encoding="utf-8")
    shop.file.write_text(written.replace("expected_slots: 6000", "expected_slots: 60"), encoding="utf-8")
    assert "nothing would ever be released" in shop.up(code=1)
    shop.file.write_text(written, encoding="utf-8")
    said = shop.up()
    assert "ready after" in said
    assert "One operator holds all keys on this machine" in said
    try:
        assert "got a deployment that is up" in shop.up(code=1)
        assert shop.offer(*ITEMS)["added"] == len(ITEMS)
        assert {shop.decide(number)["item"] for number in range(60)} <= set(ITEMS)
        if shutil.which("node") is not None:
            assert shop.asked_as_in_the_readme() in {f"show {item}\n" for item in ITEMS}
        assert f"up {shop.file} --port {shop.port} --broker-port " in shop.command("down", str(shop.file))
        shutil.copytree(shop.data, tmp_path / "yesterday")
        copied = shop.marks()
        shop.up()
        for number in range(100, 160):
            shop.decide(number)
        while shop.marks() == copied:  # the copy is older once more was released; the figures are, each 15 s
            time.sleep(0.1)
        shop.kill_all()
        shop.up()
        assert shop.decide(200)["logged"]
        assert "ready" in shop.command("status", str(shop.file))
        shop.command("down", str(shop.file))
        today = shop.data.rename(tmp_path / "today")
        (tmp_path / "yesterday").rename(shop.data)
        refused = shop.up(code=1)
        assert "got an older copy, of 20" in refused
        Path(refused.partition("is lost, remove ")[2].partition(" to go on")[0]).unlink()
        older = shop.up(code=1)
        assert "an older copy" in older
        assert "a release was sent with record" in older
        assert "--accept-loss" not in older
        shop.file.write_text(written.replace("capacity: 6", "capacity: 5"), encoding="utf-8")
        assert "nobody is charged more than the first one guaranteed" in shop.up(code=1)
        shop.file.write_text(written, encoding="utf-8")
        shutil.rmtree(shop.data)
        today.rename(shop.data)
        with another_broker(tmp_path / "other") as bootstrap:
            moved = str(tmp_path / "moved")
            place = ["-d", str(shop.data / "deployment"), "-b", bootstrap]
            assert "closed for ever" in shop.command("topics", "export", moved, *place, "--close", str(shop.data))
            assert "its topics were moved and it is closed for ever; go on with --bootstrap" in shop.up(code=1)
            shop.command("topics", "import", moved, *place)
            shop.up(bootstrap=bootstrap)
            assert shop.decide(201)["logged"]
            verified = shop.command("verify", *place)
            assert " equal" in verified
            assert "changed" not in verified
            shop.command("down", str(shop.file))
    finally:
        if (shop.data / "up.json").exists():
            shop.kill_all()


@pytest.mark.timeout(3600)
def test_a_changed_file_goes_on_with_what_was_learned_and_paid_wherever_it_was_killed(tmp_path):
    """Catches an allowance that is full again, a second successor, a price that nobody told, and an old file that runs.

    Each step is killed: before the broker is closed the old file goes on, afterwards the new one alone.
    """
    shop = Shop(tmp_path)
    written = shop.file.read_text(encoding="utf-8").replace("window_units: 300", "window_units: 20")
    measured = written.replace("es]", "es, pl]")
    changed = measured.partition("measurement:")[0] + measured.partition("measurement:")[2].partition("\n")[2]
    again = changed.replace("[16, 80]", "[16, 90]")
    shop.file.write_text(written, encoding="utf-8")
    try:
        shop.up()
        shop.offer(*ITEMS)
        shop.offer("mug", cap={"shows": 50, "within_seconds": 60})
        shop.visits("a")
        shop.command("down", str(shop.file))
        shop.file.write_text(measured, encoding="utf-8")
        assert "nobody is charged more than the first one guaranteed for a whole life, epsilon 3, " in shop.up(code=1)
        shop.file.write_text(changed, encoding="utf-8")
        told = shop.up(code=1)
        assert "a person was charged at most epsilon 3, " in told
        assert "asks at most epsilon 2, " in told
        assert "Nothing was changed" in told
        for step in STEPS:
            shop.killed_at(step)
            if step == "closing":
                shutil.copytree(shop.data, tmp_path / "yesterday")
                shop.file.write_text(written, encoding="utf-8")
                shop.up()  # nothing was changed yet: who came late is counted, too
                shop.visits("late")
                shop.command("down", str(shop.file))
                shop.file.write_text(changed, encoding="utf-8")
            elif step == "generation 1 is closed":
                shop.file.write_text(again, encoding="utf-8")
                assert "expected the configuration with which generation 2 was begun" in shop.up("--next", code=1)
                shop.file.write_text(written, encoding="utf-8")
                assert "closed for ever" in shop.up(code=1)
                shop.file.write_text(changed, encoding="utf-8")
        shop.up()
        assert shop.decide(0)["item"] in ITEMS, "items are offered as before"
        with urllib.request.urlopen(f"http://127.0.0.1:{shop.port}/v1/catalogue", timeout=patience(20)) as answer:
            caps = {one["item"]: one["cap"] for one in json.load(answer)["items"]}
        assert caps == {"boots": None, "tent": None, "mug": {"shows": 50, "within_seconds": 60}}
        for users in ("a", "late", "new"):
            shop.visits(users)
        shop.command("down", str(shop.file))
        shop.file.write_text(written, encoding="utf-8")
        assert "got that of generation 1, which has ended" in shop.up(code=1)
        shop.file.write_text(again, encoding="utf-8")
        shop.up("--next")
        third = shop.released(shop.data / "generation-3", f"127.0.0.1:{shop.broker_port}")
        shop.command("down", str(shop.file))
        with another_broker(shop.data / "broker") as bootstrap:
            first = shop.released(shop.data, bootstrap)
        with another_broker(shop.data / "generation-2" / "broker") as bootstrap:
            second = shop.released(shop.data / "generation-2", bootstrap)
        # Of those who came again no slot was counted; the slot of `decide` above was not due.
        assert (sum(first), sum(second), third) == (40, 20, [])
        counted = [int.from_bytes(base64.b64decode(shop.left(number)["ids"])[:8], "little") for number in (2, 3)]
        assert counted == [40, 60]
        assert shop.left(3)["life"] == shop.left(2)["life"]
        keys = [
            (one / "deployment" / "keys" / "edge.key").read_bytes() for one in (shop.data, shop.data / "generation-3")
        ]
        assert keys[0] == keys[1]
        shop.data.rename(tmp_path / "today")
        (tmp_path / "yesterday").rename(shop.data)
        for text in (written, changed):
            shop.file.write_text(text, encoding="utf-8")
            assert "got an older copy, of 20" in shop.up("--next", code=1)
        for moment in tmp_path.glob("state/hushstream/marks/*/moment"):
            moment.unlink()
        for text in (written, changed):
            shop.file.write_text(text, encoding="utf-8")
            assert "closed for ever" in shop.up("--next", code=1)
    finally:
        if (shop.data / "up.json").exists():
            shop.kill_all()
