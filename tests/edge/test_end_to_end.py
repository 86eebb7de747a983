"""Devices, gateway and roles together, up to a thousand of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import KEYS, KeySource, parse_config, prepare
from hushstream.broker import EmbeddedBroker
from hushstream.edge import Transport
from hushstream.gateway.devices.server import DeviceGateway, device_log
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.ops.check.verify import verify
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench.processes import started
from hushstream.systems.p2b.edge.device import Agreement, Device
from patience import Patience

pytestmark = pytest.mark.process

DEVICES = 120
COUNTRIES = ("de", "fr", "se")
VALUES: dict[str, Any] = {
    "deployment": "shop",
    "kind": "edge",
    "items": {"capacity": 3},
    "features": {"country": {"kind": "category", "vocabulary": list(COUNTRIES)}},
    "expected_slots": DEVICES,
    "feedback": {"click_rate": 0.25, "attribution_window_seconds": 1},
    "release": {"window_units": DEVICES, "sums": "fresh"},
    "privacy": {"epsilon": 8.0},
}
HOURS_MS = 3 * 3_600_000
BETWEEN_VISITS_MS = 2_000
"""Longer than a reward may take, so that a user learns from what went unrewarded before they come back."""


def visits(device: Device, source: random.Random, now_ms: int) -> float:
    """Ten visits of a user whose country has one item that they like: the mean expected reward."""
    country, gained = source.randrange(3), 0.0
    for number in range(10):
        item = device.decide(str(number), {"country": COUNTRIES[country]}, now_ms).arm
        device.shown(str(number), item, now_ms)
        chance = 0.4 if item == country else 0.03
        gained += chance / 10
        if source.random() < chance:
            device.reward(str(number), item, 1.0, now_ms)
        now_ms += BETWEEN_VISITS_MS
    return gained


def test_devices_start_from_what_devices_sent_and_all_that_was_published_follows(tmp_path: Path) -> None:
    """120 slots at epsilon 8. Cold users lose a third to trying; warm ones gain .08, against a spread of .01."""
    folder = tmp_path / "deployment"
    folder.mkdir()
    generate_keys(folder / KEYS, ("shuffler", "sealing", "signing"))
    keys = KeySource(folder / KEYS)
    system = prepare(folder, parse_config(VALUES), keys=keys)
    agreement = Agreement.read((folder / "agreement.json").read_bytes())

    async def play() -> None:
        async with EmbeddedBroker() as broker, contextlib.AsyncExitStack() as stack:
            connection = Connection(broker.bootstrap, "shop.")
            await apply_async(connection, system)
            for role in ("shuffler", "aggregator"):
                arguments = ["-m", "hushstream.cli", "worker", role, "--deployment", str(folder), "--gather", "0"]
                arguments += ["--bootstrap", broker.bootstrap]
                await stack.enter_async_context(started(f"worker-{role}", arguments, folder))
            settings = GatewaySettings(port=0, devices=DevicesSettings(relay_seconds=0.1))
            log = device_log(broker.bootstrap, "shop.", Security(), system)
            gateway = await stack.enter_async_context(DeviceGateway(system=system, settings=settings, log=log))
            transport = Transport(f"http://127.0.0.1:{gateway.port}")
            threads = stack.enter_context(ThreadPoolExecutor(8))
            asked, source, now_ms = (
                asyncio.get_running_loop().run_in_executor,
                random.Random(3),
                time.time_ns() // 10**6,
            )
            coins = random.Random(5).randbytes
            cold = []
            sending = []
            for _ in range(DEVICES):
                device = Device.begun(agreement, coins)
                cold.append(visits(device, source, now_ms - HOURS_MS))
                (slot,) = device.outgoing(now_ms)
                sending.append(asked(threads, transport.send_slot, slot.body))
            assert {answer.status for answer in await asyncio.gather(*sending)} == {204}
            waiting = Patience(90.0)
            while (found := await asked(threads, transport.fetch_model, None)).status != 200:
                assert not waiting.over, "no model was signed in time"
                await asyncio.sleep(0.2)
            warm = []
            for _ in range(DEVICES):
                device = Device.begun(agreement, coins)
                assert device.take(found.body, now_ms).version == 1
                warm.append(visits(device, source, now_ms))
            assert np.mean(warm) > np.mean(cold) + 0.05
            await stack.aclose()
            copy = await copy_async(connection, system.partitions)
        checked = verify(copy, system, keys, ("shuffler", "aggregator"))
        assert checked.exit_code == 0, checked.as_text()
        assert "statements/0: 1 equal" in checked.as_text()

    asyncio.run(play())
