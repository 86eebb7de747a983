"""`hushstream up`: from a file to a service, over kill -9 of all of it, from no older copy, to another broker."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from hushstream.replay.runners.stream import free_port
from patience import patience

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]
ITEMS = ("boots", "tent", "mug")


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

    def up(self, code: int = 0, **changed: int | str) -> str:
        ports = {"port": self.port, "broker-port": self.broker_port} | {
            k.replace("_", "-"): v for k, v in changed.items()
        }
        options = [word for name, port in ports.items() for word in (f"--{name}", str(port))]
        return self.command("up", str(self.file), *options, "--detach", code=code)

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

    def offer(self, *items: str) -> Any:
        """What the owner of the shop does, with the token of `up`."""
        token = (self.data / "operators").read_text(encoding="utf-8").split()[1]
        return self.ask("catalogue", {"items": [{"item": one} for one in items]}, Authorization=f"Bearer {token}")

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


def test_a_shop_is_up_survives_a_kill_of_everything_refuses_an_earlier_copy_and_moves(tmp_path: Path) -> None:
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
        shop.command("down", str(shop.file))
        shutil.copytree(shop.data, tmp_path / "yesterday")
        shop.up()
        for number in range(100, 160):
            shop.decide(number)
        shop.kill_all()
        shop.up()
        assert shop.decide(200)["logged"]
        assert "ready" in shop.command("status", str(shop.file))
        shop.command("down", str(shop.file))
        today = shop.data.rename(tmp_path / "today")
        (tmp_path / "yesterday").rename(shop.data)
        assert "a release was sent with record" in shop.up(code=1)
        shop.file.write_text(written.replace("capacity: 6", "capacity: 5"), encoding="utf-8")
        assert "expected the configuration with which" in shop.up(code=1)
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
