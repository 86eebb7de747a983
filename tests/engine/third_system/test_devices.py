"""A gateway for devices serves a system of another package by what that declares: its `device_service`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.device_service import Served
from hushstream.engine.declare.role import DeclarationError
from hushstream.engine.devices.errors import BadModel
from hushstream.engine.devices.travelling import body_bytes, body_of, period_of, place_of
from hushstream.engine.records import InputRecord
from hushstream.gateway.devices.gateway import DeviceGateway, device_service_of
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.schemas import codec

SIZE = body_bytes(1)


class BallotDeviceService:
    """Of a poll: each slot is a vote of whom nobody knows, in clear, in the open round of votes."""

    topic, partitions, opening = "votes", 1, None
    body_bytes, agreement = SIZE, b"{}"

    def __init__(self, system: System, schema_generation: int) -> None:
        self.digest, self.generation = system.digest, schema_generation

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        return period_of(fields) != 3

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        name = fields["report_id"].hex()
        return "Vote", {"vote_id": name, "user": name, "option": fields["sealed"][0], "config_digest": self.digest}

    def follow(self, fields: Mapping[str, Any]) -> Served:
        raise BadModel("model: expected none, got one")


class Log:
    """A `SlotLog` over a log in memory."""

    def __init__(self, played: Any) -> None:
        self.played = played

    async def start(self, on_record: Callable[[str, InputRecord], None]) -> None:
        on_record("statements", InputRecord(0, 0, b"anything"))

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        offset: int = self.played.log.append(topic, partition, value)
        return offset

    async def stop(self) -> None:
        self.played.driver.pump()


def test_a_gateway_takes_slots_of_a_system_that_it_never_heard_of(kind, play, values, tmp_path):
    config = parse_config({**values, "homes": 1})
    system = prepare(tmp_path / "drinks", config, {"options": ("options", "tea\ncoffee\nwater")})
    with pytest.raises(DeclarationError, match="expected one whose learners are devices"):
        device_service_of(system, 1)
    served = replace(system, device_service=lambda generation: BallotDeviceService(system, generation))
    played = play(served, KeySource(seed=4))
    settings = GatewaySettings(port=0, devices=DevicesSettings(relay_seconds=0.01))

    def slot(number: int, option: int, period: int = 3) -> bytes:
        place = place_of(number.to_bytes(16, "little"), period, system.digest)
        return body_of(place, bytes([option]) + bytes(SIZE - len(body_of(place, b"")) - 1))

    async def run() -> list[int]:
        gateway = DeviceGateway(system=served, settings=settings, log=Log(played))
        async with gateway, aiohttp.ClientSession() as session:
            where, octets = f"http://127.0.0.1:{gateway.port}", {"Content-Type": "application/octet-stream"}
            statuses = []
            for body in (*(slot(number, number % 3) for number in range(5)), slot(0, 0), slot(9, 0, 2), b"short"):
                async with session.post(f"{where}/v1/slots", data=body, headers=octets) as answer:
                    statuses.append(answer.status)
            async with session.get(f"{where}/v1/model") as answer:
                statuses.append(answer.status)
            return statuses

    assert asyncio.run(run()) == [*[204] * 6, 422, 400, 404]
    votes = [codec.decode(record.value)[1] for record in played.log.slice("votes", 0, 0).records]
    assert sorted(vote["option"] for vote in votes) == [0, 0, 1, 1, 2], "a slot that came twice lies there once"
    assert len(played.records("tallies")) == 1, "a window of five votes was counted, and none was refused"
    assert not any(topic.startswith("dead-letters") for (topic, _), _ in played.log.partitions())
