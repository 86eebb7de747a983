"""Every process of a deployment under its own account alone, with items by name, and with users' devices.

It fails where the rights of an account are not those of its process: each begins only with what its broker grants, and
each is seen to do its work.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.client import Item, connect
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import key_names
from hushstream.ops import access
from hushstream.ops.access import Principals
from hushstream.ops.log_copy import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.replay.runners.stream import free_port
from hushstream.systems.p2b.edge.device import Agreement, Device
from hushstream.systems.p2b.prepared import agreement_of
from hushstream.systems.p2b.system import KIND
from patience import Patience

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

FEATURES = {"country": {"kind": "category", "vocabulary": ["de", "fr"]}}
NAMED = {"items": {"capacity": 4, "named": True}, "features": FEATURES, "release": {"form": "features"}}
DEVICES = {
    "kind": "edge",
    "items": {"capacity": 3},
    "features": FEATURES,
    "slot": {"after_interactions": 1},
    "feedback": {"attribution_window_seconds": 1.0, "settle_seconds": 1.0},
}
PATIENCE_SECONDS = 90.0
OWNER = "owner-" + "t" * 32
OF_THE_OWNER = ("/v1/overview", "/v1/catalogue")


class Place:
    """A deployment on the secured broker, whose processes each have an account of their own."""

    def __init__(self, kafka: Any, folder: Path, name: str, values: dict[str, Any], duty: str) -> None:
        self.kafka, self.folder, self.name = kafka, folder / "deployment", name
        config = parse_config({"deployment": name, "expected_slots": 100, **values})
        generate_keys(self.folder / "keys", {*key_names(KIND.roles), "sealing", "signing"})
        self.system: System = prepare(self.folder, config, keys=KeySource(folder=self.folder / "keys"))
        self.port, self.duty = free_port(), duty
        (self.folder / "operators").write_text(f"owner {OWNER}\n", encoding="utf-8")
        (self.folder / "operators").chmod(0o600)
        settings = {"port": self.port, "answer_seconds": 20, "operators_file": str(self.folder / "operators")}
        settings |= {"devices": {}} if duty == "devices" else {}
        (self.folder / "gateway.yaml").write_text(json.dumps(settings), encoding="utf-8")

    @contextmanager
    def processes(self) -> Iterator[None]:
        """Every role, and a gateway."""
        started = [self._start("gateway", self.duty, ["--gateway", str(self.folder / "gateway.yaml")])]
        started += [self._start(role, role, []) for role in self.system.role_names]
        try:
            yield
            assert [process.poll() for process in started] == [None] * len(started), "a process has ended by itself"
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                process.wait(60)
            for path in self.folder.glob("*.log"):
                print(path.name, path.read_text(encoding="utf-8")[-1500:])

    def _start(self, role: str, account: str, more: Sequence[str]) -> subprocess.Popen[bytes]:
        arguments = ["worker", role, "--deployment", str(self.folder), "--bootstrap", self.kafka.passwords, *more]
        arguments += ["--security", str(self.kafka.file(account))]
        with (self.folder / f"{role}.log").open("wb") as log:
            command = [sys.executable, "-m", "hushstream.cli", *arguments]
            return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})

    def call(self, path: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, bytes]:
        """What the gateway answers; 0 while it does not listen."""
        owners = {"Authorization": f"Bearer {OWNER}"} if path in OF_THE_OWNER else {}
        said = {"Content-Type": kind, **owners}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, said)
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def has_begun(self, role: str) -> bool:
        """Whether a role reads its topics."""
        return "at journal record" in (self.folder / f"{role}.log").read_text(encoding="utf-8")

    def records(self, topic: str) -> int:
        """How many records a topic has."""
        admin = self.kafka.connection("admin", f"{self.name}.")
        copy = asyncio.run(copy_async(admin, self.system.partitions, {topic}))
        return sum(len(part.records) for _, part in copy.of_topic(topic))


def until(what: str, found: Callable[[], bool]) -> None:
    waiting = Patience(PATIENCE_SECONDS)
    while not found():
        assert not waiting.over, what
        time.sleep(0.5)


@pytest.fixture
def place(request: Any, kafka: Any, fresh_name: Callable[[], str], tmp_path: Path) -> Iterator[Place]:
    values, duty = request.param
    made = Place(kafka, tmp_path, fresh_name(), values, duty)

    async def apply() -> None:
        admin = kafka.connection("admin", f"{made.name}.")
        await apply_async(admin, made.system)
        await access.apply_async(admin, made.system, Principals.of([f"{duty}=User:{duty}"]))
        if duty == "gateway":
            security = kafka.security("client")
            async with connect(kafka.passwords, made.folder, prefix=f"{made.name}.", security=security) as client:
                await client.items.add_all([Item("boots"), Item("tent")])

    asyncio.run(apply())
    with made.processes():
        yield made


@pytest.mark.parametrize("place", [(NAMED, "gateway")], indirect=True)
def test_a_gateway_decides_among_items_by_name_under_its_own_account(place):
    def decided() -> bool:
        body = {"event_id": f"e{time.monotonic_ns()}", "user": "ann", "context": {"country": "fr"}, "baseline": "tent"}
        code, answer = place.call("/v1/decide", json.dumps(body).encode())
        return code == 200 and json.loads(answer)["logged"] and json.loads(answer)["item"] in ("boots", "tent")

    until("a decision that is in the log", decided)
    assert place.call("/readyz")[0] == 200
    assert [one["item"] for one in json.loads(place.call("/v1/items")[1])["items"]] == ["boots", "tent"]
    assert place.call("/v1/overview")[0] == 200, "what was released and paid is read under that account, too"
    added = place.call("/v1/catalogue", json.dumps({"items": [{"item": "mug"}]}).encode())
    assert (added[0], json.loads(added[1])["added"]) == (200, 1), "the owner's page writes under that account"


@pytest.mark.parametrize("place", [(DEVICES, "devices")], indirect=True)
def test_a_gateway_relays_slots_of_devices_under_its_own_account(place):
    until("a gateway that is ready", lambda: place.call("/readyz")[0] == 200)
    agreement, now_ms = Agreement.read(agreement_of(place.system.core)), int(time.time() * 1000)
    device = Device.begun(agreement, random.Random(5).randbytes)
    device.decide("visit", {"country": "fr"}, now_ms - 10_000)
    slot = device.outgoing(now_ms)[0].body
    assert place.call("/v1/slots", slot, "application/octet-stream")[0] == 204
    assert place.records("reports") == 1
    for role in place.system.role_names:
        until(f"a {role} that has taken up its partition", lambda role=role: place.has_begun(role))
