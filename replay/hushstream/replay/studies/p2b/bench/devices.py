"""Measures devices that use a gateway, and compares them with the same users hosted: ``make bench-edge``.

Users of the shop visit it on simulated devices and send their slots over HTTP. A gateway, a shuffler and an aggregator,
each as it is deployed, make a model from them, and devices of further users start from it. The same users also play
against a hosted deployment with the same settings. They have the same keys in both, so the same visits are reported,
and only the noise differs. Keys from a seed are allowed for simulated users only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import KEYS, KeySource, parse_config, prepare
from hushstream.broker import EmbeddedBroker
from hushstream.edge import Answer, Transport
from hushstream.engine.declare.declaration import System
from hushstream.gateway.devices.gateway import DeviceGateway, device_log
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.ops.check.verify import verify
from hushstream.ops.connection import Connection
from hushstream.ops.live import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.processes import started
from hushstream.replay.runners.playing import DirectSession
from hushstream.replay.studies.p2b.closed_loop import ClosedLoop, Plan
from hushstream.replay.worlds.shop import ShopWorld, shop
from hushstream.systems.p2b.device.agreement import Agreement
from hushstream.systems.p2b.device.device import Device

VISITS = 5
SENDERS = 32
"""How many devices send at the same time."""

MODEL_SECONDS = 120.0
CHECKED = ("shuffler", "aggregator")
BETWEEN_MS = 10
HOURS_MS = 3 * 3_600_000
"""How long ago contributors visited: longer than the delay of the agreement, so that their slots may be sent."""

AS_GOOD = 0.005
"""The most reward that devices may lose compared with a hosted deployment."""


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of both deployments.

    Attributes:
        devices: how many devices sent a slot.
        hand_in_seconds: seconds in which all devices together sent their slots.
        verify: 0 where everything that was published follows from the logs.
        cold: mean chance of a click of the contributors; the same in both deployments.
        warm: mean chance of the users who started from the devices' model.
        hosted: mean chance of the same users when they started from the hosted model.
    """

    devices: int
    hand_in_seconds: float
    verify: int
    cold: float
    warm: float
    hosted: float

    @property
    def is_as_good(self) -> bool:
        """Whether devices lose at most `AS_GOOD` compared with a hosted deployment."""
        return self.verify == 0 and self.warm >= self.hosted - AS_GOOD

    def as_text(self) -> str:
        """The outcome as lines of text."""
        return "\n".join(
            (
                f"{self.devices:,} devices sent a slot each, in {self.hand_in_seconds:.1f} s",
                f"verify: {'equal' if self.verify == 0 else 'NOT EQUAL'}",
                f"chance of a click: {self.cold:.4f} cold; {self.warm:.4f} from the devices' model, {self.hosted:.4f} "
                f"from the hosted one ({self.warm - self.hosted:+.4f}; down to -{AS_GOOD:g} is as good)",
            )
        )


def measure(devices: int, evaluated: int, seed: int) -> Found:
    """Play both deployments.

    Args:
        devices: how many users contribute to the model.
        evaluated: how many users start from it.
        seed: seed of the users, and of the keys that they have in both deployments.

    Raises:
        BenchFailed: a slot was refused, no model came in time, or cold users chose other items on devices than hosted.
    """
    world = shop(users=devices + evaluated, rounds=VISITS, seed=seed)
    users, keys = Plan(devices, evaluated, ("warm_private",)), KeySource(seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        hosted = asyncio.run(_hosted(Path(folder) / "hosted", world, users, keys))
        return asyncio.run(_Edge(Path(folder) / "edge", world, users, keys).play(hosted))


def _settings(world: ShopWorld, devices: int) -> dict[str, Any]:
    return {
        "deployment": "devices",
        "items": {"capacity": world.arms},
        "features": world.schema.plain,
        "expected_slots": devices,
        "slot": {"after_interactions": VISITS},
        "feedback": {"click_rate": world.click_rate, "attribution_window_seconds": 1},
        "release": {"window_units": devices, "sums": "fresh"},
        "privacy": {"epsilon": 8.0},
    }


async def _hosted(folder: Path, world: ShopWorld, users: Plan, keys: KeySource) -> dict[str, NDArray[np.int32]]:
    """Play the hosted deployment; return the chosen items, (users, visits), by condition."""
    system = prepare(folder, parse_config(_settings(world, users.contributors)), keys=keys)
    async with DirectSession(system, keys) as session:
        played = await ClosedLoop(world, users, rules=system.requests).run(session.event_log())
    return played.chosen


class _Edge:
    """The deployment whose learners are on devices."""

    def __init__(self, folder: Path, world: ShopWorld, users: Plan, user_keys: KeySource) -> None:
        settings = _settings(world, users.contributors)
        config = parse_config({**settings, "kind": "edge", "slot": {**settings["slot"], "sealed": True}})
        folder.mkdir()
        generate_keys(folder / KEYS, ("shuffler", "sealing", "signing"))
        self._folder, self._world, self._users, self._keys = folder, world, users, KeySource(folder / KEYS)
        self._user_keys = user_keys.key("edge")
        self._system: System = prepare(folder, config, keys=self._keys)
        self._agreement = Agreement.read((folder / "agreement.json").read_bytes())

    async def play(self, hosted: dict[str, NDArray[np.int32]]) -> Found:
        """Play both phases on devices, and compare the outcome with the hosted deployment's choices."""
        count, now_ms = self._users.contributors, time.time_ns() // 10**6
        teachers = np.arange(count)
        taught = [self._lived("contributors", int(user), now_ms - HOURS_MS) for user in teachers]
        cold = np.array([items for _, items in taught])
        if not (cold == hosted["contributors"]).all():
            raise BenchFailed("devices: expected the choices of the hosted deployment of cold users, got others")
        bodies = [one.body for device, _ in taught for one in device.outgoing(now_ms)]
        async with EmbeddedBroker() as broker:
            model, seconds = await self._through(broker.bootstrap, bodies)
            connection = Connection(broker.bootstrap, "devices.")
            copy = await copy_async(connection, self._system.partitions)
        started_from = np.arange(count, count + self._users.evaluated)
        warm = np.array([self._lived("warm_private", int(user), now_ms, model)[1] for user in started_from])
        checked = verify(copy, self._system, self._keys, CHECKED)
        return Found(
            len(bodies),
            seconds,
            checked.exit_code,
            self._chance(teachers, cold),
            self._chance(started_from, warm),
            self._chance(started_from, hosted["warm_private"]),
        )

    async def _through(self, bootstrap: str, bodies: Sequence[bytes]) -> tuple[bytes, float]:
        """Send slots over HTTP; return the model made from them, and how many seconds sending took."""
        await apply_async(Connection(bootstrap, "devices."), self._system)
        async with contextlib.AsyncExitStack() as stack:
            for role in CHECKED:
                arguments = ["-m", "hushstream.cli", "worker", role, "--deployment", str(self._folder)]
                arguments += ["--bootstrap", bootstrap, "--gather", "0", "--session-timeout", "3"]
                await stack.enter_async_context(started(f"worker-{role}", arguments, self._folder))
            # All devices send from this machine's one address.
            devices = DevicesSettings(relay_seconds=0.1, slots_burst=len(bodies))
            settings = GatewaySettings(port=0, devices=devices)
            log = device_log(bootstrap, "devices.", Security(), self._system)
            gateway = await stack.enter_async_context(DeviceGateway(system=self._system, settings=settings, log=log))
            transport = Transport(f"http://127.0.0.1:{gateway.port}")
            threads, loop = stack.enter_context(ThreadPoolExecutor(SENDERS)), asyncio.get_running_loop()
            begun = time.perf_counter()
            answers = await asyncio.gather(
                *(loop.run_in_executor(threads, transport.send_slot, body) for body in bodies)
            )
            seconds = time.perf_counter() - begun
            if refused := {answer.status for answer in answers} - {204}:
                raise BenchFailed(f"slots: expected 204 for each, got {sorted(refused)} too")
            return (await self._model(lambda: loop.run_in_executor(threads, transport.fetch_model, None))).body, seconds

    async def _model(self, fetch: Callable[[], asyncio.Future[Answer]]) -> Answer:
        waited_from = time.perf_counter()
        while (found := await fetch()).status != 200:
            if time.perf_counter() - waited_from > MODEL_SECONDS:
                raise BenchFailed(f"model: expected one within {MODEL_SECONDS:.0f} s of the last slot, got none")
            await asyncio.sleep(0.2)
        return found

    def _lived(self, condition: str, user: int, now_ms: int, model: bytes | None = None) -> tuple[Device, list[int]]:
        """A user's device after all their visits, and the items that it chose."""
        # The key must equal the one that `hushstream.systems.p2b.edge.users.Users.user_key` derives.
        key = self._user_keys.prf("derive", "user", f"{condition}-{user}")
        device, chosen = Device(self._agreement, key, bytes), list[int]()
        if model is not None:
            device.take(model, now_ms)
        for visit in range(self._world.rounds):
            one = np.array([user])
            (values,) = self._world.contexts(one, visit)
            item = device.decide(str(visit), values, now_ms).arm
            device.reward(str(visit), item, float(self._world.rewards(one, visit, np.array([item]))[0]), now_ms)
            chosen.append(item)
            now_ms += BETWEEN_MS
        return device, chosen

    def _chance(self, users: NDArray[np.int64], chosen: NDArray[Any]) -> float:
        """The mean chance of a click of the chosen items."""
        return float(
            np.mean([self._world.expected(users, visit, chosen[:, visit]) for visit in range(self._world.rounds)])
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 where devices are worse, or published records do not follow from the logs."""
    asked = argparse.ArgumentParser(description="Devices through a gateway, beside the same users hosted.")
    asked.add_argument("--devices", type=int, default=1000, help="users who contribute to the model")
    asked.add_argument("--evaluated", type=int, default=2000, help="users who start from the model")
    asked.add_argument("--seed", type=int, default=0, help="seed of the users and their keys")
    asked.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = asked.parse_args(arguments)
    found = measure(given.devices, given.evaluated, given.seed)
    print(json.dumps(asdict(found)) if given.json else found.as_text())
    return 0 if found.is_as_good else 1


if __name__ == "__main__":
    sys.exit(main())
