"""Runs `hushstream demo --serve`: broker, workers, gateway, simulated visitors and a page, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp

from hushstream.agents.worker.deployment import KEYS, KeySource, read_config
from hushstream.client import connect
from hushstream.engine.declare.declaration import System
from hushstream.ops.check.verify import verified_topics, verify
from hushstream.ops.log_copy import open_logs
from hushstream.replay.demo.page import application, bundle_of, read_figures, serving
from hushstream.replay.demo.visitors import GOODS, DeviceVisitors, Visitors
from hushstream.replay.runners.stream import HOST, StreamPlace, StreamSession, first_of, free_port, require_free
from hushstream.replay.runners.up import made
from hushstream.replay.worlds.shop import DECLARATION, ITEMS
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig

LEARNER = "learner"
DEPLOYMENT = "deployment"
LOOK_SECONDS = 3.0
"""Seconds between two reads of the published topics."""

_MADE_HERE = ".made-by-demo"
_POLL_SECONDS = 0.1
_WORKER_OPTIONS = ("--snapshot-interval", "5")
"""Seconds between snapshots, so short that a learner that is killed within a minute restarts from one."""

_ON_ONE_MACHINE = {"slots_per_hour": 1e9, "slots_burst": 1_000_000, "looks_per_minute": 1e6, "relay_seconds": 0.2}
"""Limits of a gateway for devices: all visitors on this machine have the same address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """The options of a live demo.

    Attributes:
        folder: folder for everything that it writes.
        port: port of the page, on loopback; 0 for any free one.
        gateway_port: port of the gateway, as above.
        visitors: how many visitors there are at the same time; of devices, how many come in a second.
        seed: seed of the visitors' taste.
        seconds: end after this time; None runs until it is interrupted.
        devices: folder of the package `@hushstream/edge`: visitors learn on their own devices. None: hosted.
    """

    folder: Path = Path("demo")
    port: int = 8765
    gateway_port: int = 8766
    visitors: int = 60
    seed: int = 0
    seconds: float | None = None
    devices: Path | None = None


@dataclass(slots=True)
class KillStatus:
    """The state of the learner after it was killed last.

    Attributes:
        number: how many times a learner was killed.
        state: running, away or verifying.
        away_seconds: seconds without an answer of a learner.
        progress: progress of `verify`: steps done, steps in all, and what is being done.
        verified: the result of `verify` after the kill: records by status.
        equal: whether every record was checked and none is changed; None before `verify` has ended.
    """

    number: int = 0
    state: str = "running"
    away_seconds: float | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    verified: dict[str, int] = field(default_factory=dict)
    equal: bool | None = None


class KillRefused(HushstreamError):
    """There is no learner to kill: it is still starting, its records are being verified, or devices learn."""


class Live:
    """Holds the state of a live demo for the page, and kills the learner."""

    def __init__(self, options: LiveOptions, gateway: str) -> None:
        """Show that it is starting, until `opened`."""
        self._options, self.gateway = options, gateway
        self._visitors: Visitors | DeviceVisitors | None = None
        self._killing = KillStatus()
        self._figures: dict[str, Any] = {}
        self._curve: list[dict[str, Any]] = []
        self._trouble = ""
        self._killed_at: list[float] = []
        self._after: asyncio.Task[None] | None = None

    def opened(self, system: System, session: StreamSession, visitors: Visitors | DeviceVisitors) -> None:
        """Visitors come from now on."""
        self._system, self._session, self._visitors = system, session, visitors
        self._began = time.monotonic()

    def state(self) -> dict[str, Any]:
        """The state that the page draws, as plain values."""
        if self._visitors is None:
            return {"starting": True}
        tally, killing = self._visitors.tally, self._killing
        return {
            "seconds": round(self._seconds, 1),
            "devices": self._options.devices is not None,
            "gateway": self.gateway,
            "items": list(ITEMS),
            "names": [one.item for one in GOODS],
            "features": self._system.core.config.context.schema.plain,
            "visitors": tally.visitors,
            "answered": tally.answered,
            "alone": tally.alone,
            "figures": self._figures,
            "curve": self._curve,
            "learner": asdict(killing),
            "killed_at": self._killed_at,
            "promised": self._system.guarantee().sentence(),
            "trouble": self._trouble,
            "tools": f"--deployment {self._options.folder / DEPLOYMENT} --bootstrap {self._session.bootstrap}",
            "configuration": str(self._options.folder / configuration_name(self._options.devices is not None)),
        }

    def agreement(self) -> bytes:
        """What a device must know; empty as long as there is none."""
        return self._visitors.agreement if isinstance(self._visitors, DeviceVisitors) else b""

    async def kill(self) -> None:
        """SIGKILL the learner and start it again; when it answers, everything that was published is recomputed.

        Raises:
            KillRefused: there is no learner, or an earlier kill is not finished.
        """
        if not isinstance(self._visitors, Visitors):
            raise KillRefused("kill: expected a learner that runs, got none")
        if self._killing.state != "running":
            raise KillRefused(f"kill: expected a running learner, got one that is {self._killing.state}")
        self._killing = KillStatus(self._killing.number + 1, "away")
        self._killed_at.append(round(self._seconds, 1))
        self._after = asyncio.create_task(self._restart_learner(self._visitors))

    async def look(self) -> None:
        """Read what was published and spent, repeatedly."""
        while True:
            try:
                self._figures = await read_figures(self._system, self._session.connection())
                self._trouble = ""
            except HushstreamError as error:
                self._trouble = str(error)
            lift = self._figures.get("lift")
            if lift is not None and (not self._curve or self._curve[-1]["releases"] != lift["releases"]):
                self._curve.append({"t": round(self._seconds, 1), **lift})
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    async def _restart_learner(self, visitors: Visitors) -> None:
        killing = self._killing
        try:
            await self._session.kill(LEARNER)
            # The answers that the killed learner had written reach the gateway shortly after its end.
            await asyncio.sleep(_POLL_SECONDS)
            last = visitors.tally.answered_at
            visitors.answered.clear()
            await visitors.answered.wait()
            killing.away_seconds = round(visitors.tally.answered_at - last, 1)
            killing.state = "verifying"
            await self._verify(killing, visitors)
        except (HushstreamError, OSError) as error:
            self._trouble = str(error)
        finally:
            killing.state = "running"

    async def _verify(self, killing: KillStatus, visitors: Visitors) -> None:
        """Recompute everything that was published, while visitors continue.

        Visitors pause only while the ends of all logs are read. A record that is written in this moment would be
        counted neither as equal nor as changed.
        """

        def progress(done: int, total: int, what: str) -> None:
            killing.progress = {"done": done, "total": total, "what": what}

        system, connection = self._system, self._session.connection()
        await visitors.pause()
        try:
            async with open_logs(connection, system.partitions, verified_topics(system)) as logs:
                visitors.resume()
                copy = await logs.copy(progress)
        finally:
            visitors.resume()
        keys = KeySource(self._options.folder / DEPLOYMENT / KEYS)
        found = await asyncio.to_thread(verify, copy, system, keys, progress=progress)
        killing.verified = {str(status): number for status, number in found.totals.items()}
        killing.equal = found.ok


async def serve(options: LiveOptions, print_line: Callable[[str], None]) -> dict[str, Any]:
    """Run until SIGINT, SIGTERM, SIGHUP or ``options.seconds``, and stop everything that was started.

    Args:
        options: see `LiveOptions`.
        print_line: called with each line to print.

    Returns:
        The last state, in the form that the page gets.

    Raises:
        HushstreamError: a port is in use, another program made the folder, or a process ended by itself.
    """
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    gateway_port = options.gateway_port or free_port()
    require_free("--gateway-port", gateway_port)
    gateway = f"http://{HOST}:{gateway_port}"
    live = Live(options, gateway)
    bundle = ""
    if options.devices is not None:
        print_line("the devices' package is built by npm where it is not yet ...")
        bundle = bundle_of(options.devices)
    system = prepare_folder(options.folder, options.devices is not None)
    async with serving(application(live, gateway, bundle), options.port) as origin:
        print_line(f"starting a broker, {len(system.role_names)} workers and a gateway below {options.folder} ...")
        began = time.monotonic()

        def opened() -> None:
            print_line(f"after {time.monotonic() - began:.0f} s: {origin}   (Ctrl-C ends everything)")

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.seconds):
                await first_of(ended.wait(), _run(live, options, system, origin, gateway_port, opened))
        print_line("the workers and the broker have stopped")
    return live.state()


async def _run(
    live: Live, options: LiveOptions, system: System, origin: str, gateway_port: int, opened: Callable[[], None]
) -> None:
    """Start everything behind the page, and run it until this is cancelled."""
    deployment = options.folder / DEPLOYMENT
    settings: dict[str, Any] = {"port": gateway_port, "cors_origins": [origin], "answer_seconds": 2.0}
    if options.devices is not None:
        settings["devices"] = _ON_ONE_MACHINE
    place = StreamPlace(deployment, None, None, worker_options=_WORKER_OPTIONS, gateway=settings)
    session = StreamSession(system, place)
    async with session, aiohttp.ClientSession() as calls:
        await first_of(session.ready(lambda said: None), session.watch())
        visitors: Visitors | DeviceVisitors
        if options.devices is None:
            config: P2BConfig = system.core.config
            async with connect(session.bootstrap, deployment) as client:
                await client.items.add_all(GOODS[: config.arms])
            visitors = Visitors(calls, live.gateway, config, options.visitors, options.seed)
        else:
            visitors = DeviceVisitors(calls, live.gateway, options.visitors, options.seed)
            await visitors.begin()
        live.opened(system, session, visitors)
        opened()
        await first_of(session.watch(), visitors.run(), live.look())


def configuration_name(devices: bool) -> str:
    """The file name of the configuration."""
    return "devices.yaml" if devices else "demo.yaml"


def prepare_folder(folder: Path, devices: bool = False) -> System:
    """Write the configuration unless the user has one in the folder, and prepare a deployment with new keys.

    The deployment is new each time, as the logs of the last one were in the memory of a broker that has ended.

    Raises:
        HushstreamError: the configuration is no deployment of p2b of this kind, or another program made the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / configuration_name(devices)
    if not path.exists():
        path.write_text((files(__package__) / path.name).read_text(encoding="utf-8"), encoding="utf-8")
    config = read_config(path)
    kind = "edge" if devices else "hosted"
    if config.system != "p2b" or config.kind != kind:
        raise HushstreamError(
            f"{path}: expected a deployment of p2b of the kind {kind}, got {config.system}"
            f"{f' ({config.kind})' if config.system == 'p2b' else ''}; other systems are played by `hushstream replay`"
        )
    _require_shop(path, config, devices)
    place = folder / DEPLOYMENT
    if place.exists():
        if not (place / _MADE_HERE).exists():
            raise HushstreamError(f"{place}: expected a folder that the demo made, or none, got another one")
        shutil.rmtree(place)
    place.mkdir()
    (place / _MADE_HERE).touch()
    return made(path, place, config, {})


def _require_shop(path: Path, config: P2BConfig, devices: bool) -> None:
    """Refuse features that the simulated visitors do not have, and items that the shop has not."""
    declared = config.context.declared
    known = {name: one["kind"] for name, one in DECLARATION.items()}
    declared_kinds = {} if declared is None else {name: one.kind for name, one in declared.features.items()}
    if not declared_kinds or any(known.get(name) != kind for name, kind in declared_kinds.items()):
        raise HushstreamError(
            f"{path}: expected features that the simulated visitors have ("
            f"{', '.join(f'{name}: {kind}' for name, kind in known.items())}), got others"
        )
    if devices and config.arms > len(ITEMS):
        raise HushstreamError(f"{path}: items.capacity: expected at most the shop's {len(ITEMS)}, got {config.arms}")
    if not devices and not config.named_items:
        raise HushstreamError(f"{path}: items.named: expected true, as visitors name items by their ids, got false")
