"""``python -m hushstream.replay.shop``: broker, workers, gateway, visitors and the page, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from hushstream.agents.worker.deployment import KEYS, prepare, read_config
from hushstream.engine.declare.role import key_names
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench.processes import Running, started
from hushstream.replay.runners.ports import free_port
from hushstream.replay.runners.stream import StreamPlace, StreamSession
from hushstream.replay.shop import taste
from hushstream.replay.shop.traffic import BIN_VISITS, VISITS, Traffic, until_a_learner_answers
from hushstream.schemas.errors import HushstreamError

HOST = "127.0.0.1"
_PAGES = {
    "/": ("shop.html", "text/html"),
    "/shop.js": ("shop.js", "text/javascript"),
    "/shop.css": ("shop.css", "text/css"),
}


class Shop:
    """What the page shows."""

    def __init__(self, gateway: str, visitors: int) -> None:
        """Closed; it is to have so many visitors."""
        self.traffic: Traffic | None = None
        self._gateway, self._visits = gateway, visitors * VISITS

    def state(self) -> dict[str, Any]:
        """Plain values."""
        if self.traffic is None:
            return {"open": False}
        tally = self.traffic.tally
        return {
            "open": True,
            "gateway": self._gateway,
            "goods": taste.GOODS,
            "countries": taste.COUNTRIES,
            "ages": taste.AGES,
            "visits": tally.visits,
            "expected_visits": self._visits,
            "expected_bins": -(-self._visits // BIN_VISITS),
            "bins": tally.bins,
            "unlogged": tally.unlogged,
            "version": tally.version,
            "chance": taste.mean_chance(),
            "best": taste.BEST_CHANCE,
        }

    def application(self) -> web.Application:
        """The page, and the state as JSON."""
        policy = f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' {self._gateway}"
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}

        async def state(_: web.Request) -> web.Response:
            return web.json_response(self.state(), headers=headers)

        def page(name: str, kind: str) -> Any:
            text = (files(__package__) / "page" / name).read_text(encoding="utf-8")

            async def answer(_: web.Request) -> web.Response:
                return web.Response(text=text, content_type=kind, headers=headers)

            return answer

        made = web.Application()
        made.add_routes([web.get(path, page(*of)) for path, of in _PAGES.items()])
        made.add_routes([web.get("/state.json", state)])
        return made


@contextlib.asynccontextmanager
async def _serving(application: web.Application, port: int) -> AsyncIterator[str]:
    """Serve on loopback; gives the origin.

    Raises:
        HushstreamError: the port cannot be had.
    """
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise HushstreamError(f"--port: expected a free one on {HOST}, got {port}: {error.strerror}") from None
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _gateway(folder: Path, bootstrap: str, port: int, origin: str) -> AsyncIterator[Running]:
    file = folder / "gateway.yaml"
    file.write_text(json.dumps({"port": port, "cors_origins": [origin], "answer_seconds": 5.0}), encoding="utf-8")
    arguments = ["-m", "hushstream.cli", "worker", "gateway", "--deployment", str(folder), "--bootstrap", bootstrap]
    async with started("gateway", [*arguments, "--gateway", str(file)], folder) as running:
        yield running


async def _watch(gateway: Running) -> None:
    while True:
        gateway.check()
        await asyncio.sleep(0.5)


async def serve(folder: Path, port: int, visitors: int, seed: int) -> None:
    """Run until SIGINT or SIGTERM.

    Args:
        folder: an empty one, for the deployment and the logs of its processes.
        port: of the page; 0 for any.
        visitors: how many are simulated.
        seed: of their kinds and purchases.

    Raises:
        HushstreamError: a port is taken, or a process ended by itself.
    """
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    with (files(__package__) / "shop.yaml").open("rb") as source:
        (folder / "shop.yaml").write_bytes(source.read())
    system = prepare(folder, read_config(folder / "shop.yaml"))
    generate_keys(folder / KEYS, key_names(system.roles))
    gateway_port = free_port()
    gateway = f"http://{HOST}:{gateway_port}"
    shop = Shop(gateway, visitors)
    async with _serving(shop.application(), port) as origin:
        print(f"the shop opens at {origin}   (Ctrl-C closes it)", flush=True)
        session = StreamSession(system, StreamPlace(folder, None, None))
        async with (
            session,
            _gateway(folder, session.bootstrap, gateway_port, origin) as running,
            aiohttp.ClientSession() as calls,
        ):
            tasks = [asyncio.create_task(one) for one in (session.watch(), _watch(running), ended.wait())]
            tasks.append(asyncio.create_task(_open(shop, calls, gateway, visitors, seed)))
            try:
                await _first_end(tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)


async def _first_end(tasks: list[asyncio.Task[Any]]) -> None:
    """Until one of the first three ends; whatever fails is raised."""
    watching = set(tasks)
    while not any(task.done() for task in tasks[:3]):
        done, watching = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _open(shop: Shop, calls: aiohttp.ClientSession, gateway: str, visitors: int, seed: int) -> None:
    await until_a_learner_answers(calls, gateway)
    draws = random.Random(seed)
    traffic = shop.traffic = Traffic(calls, gateway, taste.visitors(visitors, draws), seed)
    print(f"open; {visitors} visitors come through the gateway at {gateway}", flush=True)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await traffic.run()
    tally = traffic.tally
    print(
        f"{tally.visits} visits in {loop.time() - began:.0f} s; of the first {tally.bins[0][0]} "
        f"{_share(tally.bins[0])} bought, of the last {tally.bins[-1][0]} {_share(tally.bins[-1])}",
        flush=True,
    )


def _share(of: list[int]) -> str:
    return f"{of[1] / max(of[0], 1):.0%}"


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="A small web shop, with simulated visitors and a page.")
    parser.add_argument("--port", type=int, default=8766, help="of the page; 0 for any")
    parser.add_argument("--visitors", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="hushstream-shop-") as folder:
        try:
            asyncio.run(serve(Path(folder), given.port, given.visitors, given.seed))
        except HushstreamError as error:
            print(f"shop: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
