"""A gateway with what is behind it: the embedded broker, the worker that answers, and HTTP over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import KEYS, parse_config, prepare
from hushstream.broker import EmbeddedBroker
from hushstream.engine.declare.declaration import System, conversation_of, reader_of_requests
from hushstream.gateway.listening import Endpoints
from hushstream.gateway.server import Gateway, kafka_log
from hushstream.gateway.settings import GatewaySettings
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench.processes import Running, started
from hushstream.replay.runners.stream import free_port
from hushstream.schemas import codec
from patience import Patience, patience

QUICK = ("--gather", "0")

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "p2b": {
        "deployment": "shop",
        "expected_slots": 1000,
        "items": {"capacity": 3},
        "features": {"dimension": 3, "digits": 1},
        "encoder": {"codes": 4},
    },
    "colin": {
        "system": "colin",
        "deployment": "club",
        "items": {"capacity": 3},
        "features": {"dimension": 2, "norm": 1.0},
    },
    "pdap": {
        "system": "pdap",
        "deployment": "mall",
        "vendors": [{"name": "north", "items": {"capacity": 2}}, {"name": "south", "items": {"capacity": 2}}],
        "features": {"dimension": 2},
        "privacy": {"person": "unprotected"},
    },
    "pdol": {"system": "pdol", "deployment": "words", "nodes": 2, "features": {"dimension": 4}},
    "bgt": {"system": "bgt", "deployment": "films", "items": {"capacity": 5}, "scale": {"lowest": 0.5, "highest": 5.0}},
}
PARTY = {"pdap": "north"}
INPUTS = {"colin": {"graph": ("graph", "ann,bob,1\n")}}


@dataclasses.dataclass(slots=True)
class Answer:
    """What came back over HTTP."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """A problem's code; None where it is none."""
        if self.headers["Content-Type"] != "application/problem+json":
            return None
        return str(self.json["code"])


class Caller:
    """Calls a gateway as an application does."""

    def __init__(self, session: aiohttp.ClientSession, base: str, zone_port: int = 0) -> None:
        self.session, self.base, self.zone_port = session, base, zone_port

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.call("POST", path, **({} if body is None else {"json": body}), **options)

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.call("GET", path, **options)

    async def zone_metrics(self) -> str:
        """What the operator of the applications' zone may read."""
        async with self.session.get(f"http://127.0.0.1:{self.zone_port}/metrics") as response:
            return await response.text()

    async def call(self, method: str, path: str, **options: Any) -> Answer:
        async with self.session.request(method, self.base + path, **options) as response:
            return Answer(response.status, response.headers, await response.read())


class Place:
    """A deployment on an embedded broker; workers and gateways come and go."""

    def __init__(self, folder: Path, name: str, broker: Any, system: System) -> None:
        self.folder, self.broker, self.system = folder, broker, system
        self.party = PARTY.get(name, "")
        self.prefix = f"{system.config.deployment}."

    @property
    def connection(self) -> Connection:
        return Connection(self.broker.bootstrap, self.prefix)

    @contextlib.asynccontextmanager
    async def worker(self, *options: str, kill: bool = False) -> AsyncIterator[Running]:
        """The worker that answers, as a process of its own."""
        asked = conversation_of(self.system, self.party).requests
        role = reader_of_requests(self.system, asked).name
        arguments = ["-m", "hushstream.cli", "worker", role, "--deployment", str(self.folder), *QUICK, *options]
        arguments += ["--bootstrap", self.broker.bootstrap]
        async with started(f"worker-{role}", arguments, self.folder, kill=kill) as running:
            yield running

    @contextlib.asynccontextmanager
    async def gateway(self, **settings: Any) -> AsyncIterator[Caller]:
        """A gateway in this process."""
        made = GatewaySettings(**{"port": 0, "party": self.party, "answer_seconds": 30.0, **settings})
        log = kafka_log(self.broker.bootstrap, self.prefix, Security(), self.system, self.party)
        endpoints = Endpoints(zone_port=free_port())
        async with (
            Gateway(system=self.system, settings=made, log=log, endpoints=endpoints) as gateway,
            aiohttp.ClientSession() as session,
        ):
            yield Caller(session, f"http://127.0.0.1:{gateway.port}", endpoints.zone_port or 0)

    @contextlib.asynccontextmanager
    async def gateway_process(
        self, port: int, *, kill: bool = False, options: Sequence[str] = (), **settings: Any
    ) -> AsyncIterator[Running]:
        """A gateway as it is deployed."""
        file = self.folder / f"gateway-{port}.yaml"
        file.write_text(json.dumps({"port": port, "party": self.party, **settings}), encoding="utf-8")
        arguments = ["-m", "hushstream.cli", "worker", "gateway", "--deployment", str(self.folder)]
        arguments += ["--bootstrap", self.broker.bootstrap, "--gateway", str(file), *options]
        async with started(f"gateway-{port}", arguments, self.folder, kill=kill) as running:
            yield running

    async def rows(self, topic: str, schema: str) -> list[dict[str, Any]]:
        """Every record of one schema on a topic, decoded."""
        found = []
        for _, part in (await copy_async(self.connection, self.system.partitions)).of_topic(topic):
            for record in part.records:
                name, fields = codec.decode(record.value)
                if name == schema:
                    found.append(fields)
        return found


@dataclasses.dataclass(slots=True)
class Brokers:
    """Brokers that run already."""

    bootstrap: str


@contextlib.asynccontextmanager
async def placed(
    name: str, folder: Path, *, without: Sequence[str] = (), bootstrap: str = "", **changes: Any
) -> AsyncIterator[Place]:
    """A deployment of a system, its topics and keys, on brokers of its own; some settings changed, some left out."""
    values = {**CONFIGURATIONS[name], **changes}
    config = parse_config({key: value for key, value in values.items() if key not in without})
    system = prepare(folder, config, INPUTS.get(name))
    zones = {zone for role in system.roles for zone in role.key_zones}
    generate_keys(folder / KEYS, sorted(zones))
    on: Any = contextlib.nullcontext(Brokers(bootstrap)) if bootstrap else EmbeddedBroker()
    async with on as broker:
        await apply_async(Connection(broker.bootstrap, f"{config.deployment}."), system)
        yield Place(folder, name, broker, system)


@contextlib.asynccontextmanager
async def calling(port: int) -> AsyncIterator[Caller]:
    """Calls a gateway that is another process, once it is ready."""
    async with aiohttp.ClientSession() as session:
        caller = Caller(session, f"http://127.0.0.1:{port}")

        async def ready() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                return (await caller.get("/readyz")).status == 200
            return False

        await until(ready, 60.0)
        yield caller


async def until(condition: Any, seconds: float = 30.0) -> Any:
    """Wait for what an async condition gives, once it is something."""
    patience = Patience(seconds)
    while not (found := await condition()):
        assert not patience.over, "it did not happen"
        await asyncio.sleep(0.05)
    return found


@pytest.fixture(scope="session")
def gateways() -> Any:
    """This module: test files do not import one another."""
    return sys.modules[__name__]


TYPESCRIPT = Path(__file__).parents[2] / "deploy" / "clients" / "typescript"

_UNREACHABLE = ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN", "ENETUNREACH")
"""What npm says of a registry that cannot be reached."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the client that was built by its lock."""
    return _built(TYPESCRIPT, tmp_path_factory.mktemp("client") / "typescript")


@pytest.fixture(scope="module")
def built_edge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the devices' package that was built by its lock."""
    return _built(TYPESCRIPT / "edge", tmp_path_factory.mktemp("edge") / "edge")


def _built(package: Path, folder: Path) -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no Node is installed (Debian packages nodejs and npm)")
    shutil.copytree(package, folder, ignore=shutil.ignore_patterns("node_modules", "dist", "edge"))
    made = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if made.returncode and any(reason in made.stderr for reason in _UNREACHABLE):
        pytest.skip("npm's registry cannot be reached, from which the TypeScript compiler comes")
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


async def node(folder: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    """What Node says of a program, which must end with this exit code."""
    process = await asyncio.create_subprocess_exec(
        "node",
        *arguments,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(patience(170)):
        said = (await process.communicate())[0].decode()
    assert process.returncode == code, said
    return said


def passed(said: str) -> int:
    """How many tests passed by what Node's runner says; none may have failed."""
    counts = {
        name: int(count) for name, count in re.findall(r"^(?:#|ℹ) (pass|fail|skipped) (\d+)$", said, re.MULTILINE)
    }
    assert counts["fail"] == 0, said
    return counts["pass"]


def with_the_client(folder: Path, built: Path, page: Path) -> Path:
    """An application as a page shows it: the package installed, and the page's one block of JavaScript."""
    (folder / "node_modules").mkdir(parents=True)
    (folder / "node_modules" / "hushstream").symlink_to(built)
    (code,) = re.findall(r"```js\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "app.mjs").write_text(code, encoding="utf-8")
    return folder
