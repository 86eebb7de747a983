"""1,000 devices through a gateway, beside the same users hosted (`make bench-edge`).

Users of the shop visit it on simulated devices and send their slots over HTTP. A gateway, a shuffler and an aggregator,
each as it is deployed, make a model from them, and devices of further users start from it. The same users also play
against a hosted deployment with the same settings. They have the same keys in both, so the same visits are reported,
and only the noise differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import KEYS, KeySource, parse_config, prepare
from hushstream.broker import EmbeddedBroker
from hushstream.edge import Answer, Transport
from hushstream.engine.declare.declaration import System
from hushstream.gateway.devices.server import DeviceGateway, device_log
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.ops.check.verify import verify
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench.processes import started
from hushstream.replay.runners.playing import DirectSession
from hushstream.replay.studies.p2b.run import ClosedLoop, Plan
from hushstream.replay.worlds.shop import ShopWorld, shop
from hushstream.systems.p2b.edge.device import Agreement, Device
from patience import patience

VISITS = 5
SENDERS = 32
"""How many devices send at the same time."""

CHECKED = ("shuffler", "aggregator")
BETWEEN_MS = 10
HOURS_MS = 3 * 3_600_000
"""How long ago contributors visited: longer than the delay of the agreement, so that their slots may be sent."""

AS_GOOD = 0.014
"""The most that the chance of a click may differ from a hosted deployment's.

The noise of the one release is drawn under a new key in every run; by it alone the chance has a standard deviation of
.0021 (29 hosted draws with the users' keys given, mean .5140; the one that is compared with is .5158). A model as good
has to lie 5.8 deviations from that mean to fail: less than one false alarm in a million runs. A model of half of the
slots failed in 12 of 12 draws: it lost .02 to .21.
"""


@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_thousand_devices_teach_a_model_as_good_as_the_hosted_one_and_all_that_is_published_follows(
    tmp_path: Path,
) -> None:
    """The users' keys are given: what differs is the noise of the release. Cold users click half as often."""
    world, users, keys = shop(users=3000, rounds=VISITS, seed=0), Plan(1000, 2000, ("warm_private",)), KeySource(seed=0)
    chosen = asyncio.run(_hosted(tmp_path / "hosted", world, users, keys))
    cold, warm, hosted = asyncio.run(_Edge(tmp_path / "edge", world, users, keys).play(chosen))
    print(f"chance of a click: {cold:.4f} cold; {warm:.4f} from the devices' model, {hosted:.4f} from the hosted one")
    assert abs(warm - hosted) <= AS_GOOD
    assert warm > cold + 0.15


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
        config = parse_config({**settings, "kind": "edge"})
        folder.mkdir()
        generate_keys(folder / KEYS, ("shuffler", "sealing", "signing"))
        self._folder, self._world, self._users, self._keys = folder, world, users, KeySource(folder / KEYS)
        self._user_keys = user_keys.key("edge")
        self._system: System = prepare(folder, config, keys=self._keys)
        self._agreement = Agreement.read((folder / "agreement.json").read_bytes())

    async def play(self, hosted: dict[str, NDArray[np.int32]]) -> tuple[float, float, float]:
        """Mean chances of a click: cold, from the devices' model, and as the same users had it hosted."""
        count, now_ms = self._users.contributors, time.time_ns() // 10**6
        teachers = np.arange(count)
        taught = [self._lived("contributors", int(user), now_ms - HOURS_MS) for user in teachers]
        cold = np.array([items for _, items in taught])
        assert (cold == hosted["contributors"]).all(), "cold users choose the same on devices as hosted"
        bodies = [one.body for device, _ in taught for one in device.outgoing(now_ms)]
        assert len(bodies) == count
        async with EmbeddedBroker() as broker:
            model = await self._through(broker.bootstrap, bodies)
            connection = Connection(broker.bootstrap, "devices.")
            copy = await copy_async(connection, self._system.partitions)
        started_from = np.arange(count, count + self._users.evaluated)
        warm = np.array([self._lived("warm_private", int(user), now_ms, model)[1] for user in started_from])
        assert verify(copy, self._system, self._keys, CHECKED).exit_code == 0
        chances = self._chance(teachers, cold), self._chance(started_from, warm)
        return *chances, self._chance(started_from, hosted["warm_private"])

    async def _through(self, bootstrap: str, bodies: Sequence[bytes]) -> bytes:
        """Send slots over HTTP; return the model made from them."""
        await apply_async(Connection(bootstrap, "devices."), self._system)
        async with contextlib.AsyncExitStack() as stack:
            for role in CHECKED:
                arguments = ["-m", "hushstream.cli", "worker", role, "--deployment", str(self._folder)]
                arguments += ["--bootstrap", bootstrap, "--gather", "0"]
                await stack.enter_async_context(started(f"worker-{role}", arguments, self._folder))
            # All devices send from this machine's one address.
            devices = DevicesSettings(relay_seconds=0.1, slots_burst=len(bodies))
            settings = GatewaySettings(port=0, devices=devices)
            log = device_log(bootstrap, "devices.", Security(), self._system)
            gateway = await stack.enter_async_context(DeviceGateway(system=self._system, settings=settings, log=log))
            transport = Transport(f"http://127.0.0.1:{gateway.port}")
            threads, loop = stack.enter_context(ThreadPoolExecutor(SENDERS)), asyncio.get_running_loop()
            answers = await asyncio.gather(
                *(loop.run_in_executor(threads, transport.send_slot, body) for body in bodies)
            )
            assert {answer.status for answer in answers} == {204}
            return (await self._model(lambda: loop.run_in_executor(threads, transport.fetch_model, None))).body

    async def _model(self, fetch: Callable[[], asyncio.Future[Answer]]) -> Answer:
        until = time.monotonic() + patience(120)
        while (found := await fetch()).status != 200:
            assert time.monotonic() < until, "expected a model after the last slot"
            await asyncio.sleep(0.2)
        return found

    def _lived(self, condition: str, user: int, now_ms: int, model: bytes | None = None) -> tuple[Device, list[int]]:
        """A user's device after all their visits, and the items that it chose."""
        # The key must equal the one that `hushstream.systems.p2b.edge.agent.EdgeTerms.user_key` derives.
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
