"""``python -m hushstream.replay.shop``: runs broker, workers, gateway, visitors and the page, until Ctrl-C.

With ``--devices`` visitors and the page keep all data on their own devices (`hushstream.replay.shop.devices`). With
``--seeds`` no page is served: the visitors of each seed are simulated, and their purchases are printed. With
``--stock-changes`` an item is added and another withdrawn during the run, and everything published is verified.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from hushstream.agents.worker.deployment import KEYS, KeySource, prepare, read_config
from hushstream.client.items import Items
from hushstream.client.kafka import connect
from hushstream.engine.declare.role import key_names
from hushstream.engine.devices.published import SEALING_ZONE, SIGNING_ZONE
from hushstream.ops.check.findings import Verified
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench.processes import Running, started
from hushstream.replay.runners.ports import free_port
from hushstream.replay.runners.stream import StreamPlace, StreamSession
from hushstream.replay.shop import taste
from hushstream.replay.shop.devices import DeviceStorefront, DeviceTraffic, until_agreed
from hushstream.replay.shop.rehearsal import Rehearsal, pays, share
from hushstream.replay.shop.storefront import Storefront
from hushstream.replay.shop.traffic import Tally, Traffic, until_a_learner_answers
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.device.agreement import Agreement

HOST = "127.0.0.1"
_SHELF_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Shop:
    """A running shop.

    Attributes:
        gateway: the address of its gateway.
        items: its catalogue.
        calls: an HTTP session for visitors.
        alive: a coroutine that never returns, and raises when a process ends by itself.
    """

    gateway: str
    items: Items
    calls: aiohttp.ClientSession
    alive: Coroutine[Any, Any, None]


@contextlib.asynccontextmanager
async def opened(folder: Path, port: int, origin: str | None) -> AsyncIterator[Shop]:
    """Run broker, workers and gateway as processes while the context is open, and add the first items.

    Args:
        folder: an empty folder for the deployment and the logs of its processes.
        port: port of the gateway.
        origin: origin of the page that may call the gateway; None for no page.

    Raises:
        HushstreamError: a process does not start.
    """
    system = prepare(folder, _configuration(folder, "shop.yaml"))
    generate_keys(folder / KEYS, key_names(system.roles))
    session = StreamSession(system, StreamPlace(folder, None, None))
    async with session, connect(session.bootstrap, folder) as client:
        await client.items.add_all(taste.STOCK)
        async with _gateway(folder, session.bootstrap, port, origin) as running, aiohttp.ClientSession() as calls:
            address = f"http://{HOST}:{port}"
            alive = _alive(session, running, client.items)
            try:
                await until_a_learner_answers(calls, address)
                yield Shop(address, client.items, calls, alive)
            finally:
                alive.close()


def _configuration(folder: Path, name: str) -> Any:
    """Copy a configuration that comes with hushstream into a deployment's folder."""
    (folder / name).write_bytes((files(__package__) / name).read_bytes())
    return read_config(folder / name)


@contextlib.asynccontextmanager
async def opened_for_devices(
    folder: Path, port: int, origin: str
) -> AsyncIterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Run broker, shuffler, aggregator and a gateway for devices, while the context is open.

    Args:
        folder: an empty folder for the deployment and the logs of its processes.
        port: port of the gateway.
        origin: origin of the page that may call the gateway.

    Returns:
        The gateway's address, and a coroutine that raises when a process ends by itself.

    Raises:
        HushstreamError: a process does not start.
    """
    published = (SEALING_ZONE, SIGNING_ZONE)
    generate_keys(folder / KEYS, published)
    system = prepare(folder, _configuration(folder, "devices.yaml"), keys=KeySource(folder / KEYS))
    generate_keys(folder / KEYS, set(key_names(system.roles)) - set(published))
    session = StreamSession(system, StreamPlace(folder, None, None))
    # All visitors on this machine have the same address.
    devices = {"slots_per_hour": 1e9, "slots_burst": 1_000_000, "looks_per_minute": 1e6, "relay_seconds": 0.2}
    async with session, _gateway(folder, session.bootstrap, port, origin, devices=devices) as running:
        alive = _watched(session, running)
        try:
            yield f"http://{HOST}:{port}", alive
        finally:
            alive.close()


async def _watched(session: StreamSession, gateway: Running) -> None:
    async def look() -> None:
        while True:
            gateway.check()
            await asyncio.sleep(_SHELF_SECONDS)

    await _until(session.watch(), look())


@contextlib.asynccontextmanager
async def _gateway(
    folder: Path, bootstrap: str, port: int, origin: str | None, **settings: Any
) -> AsyncIterator[Running]:
    file = folder / "gateway.yaml"
    origins = [] if origin is None else [origin]
    said = {"port": port, "cors_origins": origins, "answer_seconds": 5.0, **settings}
    file.write_text(json.dumps(said), encoding="utf-8")
    arguments = ["-m", "hushstream.cli", "worker", "gateway", "--deployment", str(folder), "--bootstrap", bootstrap]
    async with started("gateway", [*arguments, "--gateway", str(file)], folder) as running:
        yield running


async def _alive(session: StreamSession, gateway: Running, items: Items) -> None:
    """Watch the processes, and follow changes of the catalogue."""

    async def look() -> None:
        while True:
            gateway.check()
            await items.refresh()
            await asyncio.sleep(_SHELF_SECONDS)

    await _until(session.watch(), look())


@contextlib.asynccontextmanager
async def _serving(application: web.Application, port: int) -> AsyncIterator[str]:
    """Serve on loopback; yields the origin.

    Raises:
        HushstreamError: the port is in use.
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


async def serve(folder: Path, port: int, visitors: int, seed: int) -> None:
    """Run the shop with its page until SIGINT or SIGTERM.

    Args:
        folder: an empty folder for the deployment and the logs of its processes.
        port: port of the page; 0: any free port.
        visitors: how many visitors are simulated.
        seed: seed of their kinds and purchases.

    Raises:
        HushstreamError: a port is in use, or a process ended by itself.
    """
    ended = _stop_event()
    front, gateway_port = Storefront(visitors), free_port()
    async with _serving(front.application(f"http://{HOST}:{gateway_port}"), port) as origin:
        print(f"the shop opens at {origin}   (Ctrl-C closes it)", flush=True)
        await _until(ended.wait(), _run_shop(folder, gateway_port, origin, front, visitors, seed))


async def serve_devices(folder: Path, port: int, visitors: int, seed: int, package: Path) -> None:
    """As `serve`, but all visitors keep their data on their own devices.

    Args:
        folder, port, visitors, seed: see `serve`.
        package: folder of the built package `@hushstream/edge`.

    Raises:
        HushstreamError: as in `serve`; or the package is not built.
    """
    ended = _stop_event()
    front, gateway_port = DeviceStorefront(package), free_port()
    async with _serving(front.application(f"http://{HOST}:{gateway_port}"), port) as origin:
        print(f"the shop opens at {origin}   (Ctrl-C closes it)", flush=True)
        await _until(ended.wait(), _run_device_shop(folder, gateway_port, origin, front, visitors, seed))


async def _run_device_shop(
    folder: Path, port: int, origin: str, front: DeviceStorefront, visitors: int, seed: int
) -> None:
    async with opened_for_devices(folder, port, origin) as (gateway, alive), aiohttp.ClientSession() as calls:
        front.agreement = await until_agreed(calls, gateway)
        traffic = DeviceTraffic(calls, gateway, Agreement.read(front.agreement), seed)
        everybody = taste.visitors(visitors, random.Random(seed))
        print(f"open; {visitors} devices learn, and send slots through the gateway at {gateway}", flush=True)
        await _until(alive, _run_device_visitors(traffic, everybody))


async def _run_device_visitors(traffic: DeviceTraffic, everybody: Sequence[taste.Visitor]) -> None:
    await traffic.run(everybody)
    print(f"{traffic.handed_in} slots sent; {_tally_text(traffic.tally)}", flush=True)
    await asyncio.Event().wait()


def _stop_event() -> asyncio.Event:
    """An event that is set by SIGINT and SIGTERM."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


async def _run_shop(folder: Path, port: int, origin: str, front: Storefront, visitors: int, seed: int) -> None:
    async with opened(folder, port, origin) as shop:
        draws = random.Random(seed)
        traffic = Traffic(shop.calls, shop.gateway, taste.visitors(visitors, draws), seed)
        front.open(shop.items, traffic, shop.gateway)
        print(f"open; {visitors} visitors come through the gateway at {shop.gateway}", flush=True)
        await _until(shop.alive, _run_visitors(traffic))


async def _run_visitors(traffic: Traffic) -> None:
    """Run all visitors, then serve the page until the end."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await traffic.run()
    print(f"{traffic.tally.visits} visits in {loop.time() - began:.0f} s; {_tally_text(traffic.tally)}", flush=True)
    await asyncio.Event().wait()


def _tally_text(tally: Tally) -> str:
    first, last = tally.bins[0], tally.bins[-1]
    return f"of the first {first[0]} {share(*first):.0%} bought, of the last {last[0]} {share(*last):.0%}"


async def _until(first: Coroutine[Any, Any, Any], *others: Coroutine[Any, Any, Any]) -> None:
    """Run all coroutines until one ends; raise what it raises."""
    tasks = [asyncio.create_task(one) for one in (first, *others)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _measure(visitors: int, seeds: int, stock_changes: bool) -> int:
    paid, equal = 0, True
    for seed in range(seeds):
        with tempfile.TemporaryDirectory(prefix="hushstream-shop-") as folder:
            rehearsal = Rehearsal(Path(folder), seed)
            asyncio.run(rehearsal.play(visitors, stock_changes))
            if stock_changes:
                found = rehearsal.verified()
                equal = equal and found.ok
                print(f"seed {seed}: verify: {_status_counts(found)}", flush=True)
        tally = rehearsal.tally
        paid += pays(tally)
        curve = " ".join(f"{share(*one):.0%}" for one in tally.bins)
        print(
            f"seed {seed}: alone {share(*tally.alone):.0%} of {tally.alone[0]}; {curve}; pays: {pays(tally)}",
            flush=True,
        )
    made_for = [one.features for one in taste.STOCK]
    chance, best = taste.blind_chance(made_for), taste.best_chance(made_for)
    print(f"pays in {paid} of {seeds} seeds (by chance {chance:.0%} buy, everybody's favourite {best:.0%})")
    return 0 if equal else 1


def _status_counts(found: Verified) -> str:
    """The number of records of each status, as text."""
    return ", ".join(f"{count} {status}" for status, count in found.totals.items() if count)


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="A small web shop, with simulated visitors and a page.")
    parser.add_argument("--port", type=int, default=8766, help="port of the page; 0 for any free one")
    parser.add_argument("--visitors", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, help="simulate this many seeds without a page, and print their purchases")
    parser.add_argument(
        "--stock-changes", action="store_true", help="with --seeds: add an item, withdraw one, and verify everything"
    )
    parser.add_argument(
        "--devices",
        type=Path,
        metavar="PACKAGE",
        help="visitors learn on their own devices; folder of the built @hushstream/edge",
    )
    given = parser.parse_args(arguments)
    try:
        if given.seeds is not None:
            return _measure(given.visitors, given.seeds, given.stock_changes)
        with tempfile.TemporaryDirectory(prefix="hushstream-shop-") as folder:
            place = (Path(folder), given.port, given.visitors, given.seed)
            asyncio.run(serve(*place) if given.devices is None else serve_devices(*place, given.devices))
    except HushstreamError as error:
        print(f"shop: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
