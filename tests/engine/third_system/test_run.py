"""A system of another package runs: every operation works on its logs, and a gateway takes its devices' slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.engine.declare.declaration import Served, System
from hushstream.engine.declare.role import DeclarationError
from hushstream.engine.devices.kept import BadModel
from hushstream.engine.devices.sealing import body_bytes, body_of, period_of, place_of
from hushstream.engine.records import InputRecord
from hushstream.gateway.devices.server import DeviceGateway, device_service_of
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.ops import budget, dead_letters
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify, verify_export
from hushstream.ops.export import export_copy, open_export
from hushstream.ops.forget import ERASED, erase_export
from hushstream.ops.log_copy import LogCopy
from hushstream.schemas import codec


def test_verify_finds_all_that_was_published_and_names_what_was_not(played):
    found = verify(LogCopy.of(played.log), played.system, played.keys)
    assert found.ok
    assert not found.findings
    assert found.of("sums")[Status.EQUAL] == len(played.records("sums")) == 4
    assert found.of("models")[Status.EQUAL] == len(played.records("models")) + 1
    sums = played.log.slice("sums", 0, 0).records[0].value
    altered = codec.encode("ArmSums", {**codec.decode(sums)[1], "private_as_stated": True})
    assert altered != sums
    played.log.append("sums", 0, altered)
    changed = verify(LogCopy.of(played.log), played.system, played.keys)
    assert not changed.ok
    assert [one.source for one in changed.tallies if one.findings] == [("sums", 0)]


def test_without_the_zones_key_its_role_is_named_as_unchecked(played, tmp_path):
    found = verify(LogCopy.of(played.log), played.system, KeySource(tmp_path))
    assert found.unchecked == ("learner", "counter")
    assert found.of("models")[Status.EQUAL] == len(played.records("models")) + 1


def test_the_budget_reads_its_ledger_and_sees_an_entry_that_is_missing(played):
    logs = LogCopy.of(played.log)
    found = budget.read(logs, played.system)
    assert found.ok
    assert budget.budget_topics(played.system) == ("ledger", "marks-counter")
    assert dict(found.by_mechanism) == {"arm sums": len(played.records("sums"))}
    assert {account.spent.epsilon_micro for account in found.charges} == {500_000}
    assert [account.spent.epsilon_micro for account in found.deployments] == [1_000_000]
    assert "pays for 2 of 2 planned rewards of a user" in found.as_text()
    assert ("One person in a whole life, 2 rewards of one user: user-level epsilon 2, delta ") in found.as_text()


def test_what_is_refused_goes_to_its_zones_dead_letters_with_its_reason(played):
    partition, offset = played.put("ArmClick", "user-3", "never shown", reward=1)
    played.put("ArmAsk", "user-4", "other", config_digest=bytes(16))
    played.log.append("asks", partition, b"junk")
    played.log.append("sums", 0, b"junk")
    played.driver.pump()
    logs = LogCopy.of(played.log)
    topics = tuple(topic.name for topic in played.system.topics if topic.holds_dead_letters)
    assert topics == ("dead-letters-edge", "dead-letters-counter", "dead-letters-server")
    letters = dead_letters.read(logs, topics, played.system.partitions)
    assert sorted((letter.zone, letter.role, letter.reason) for letter in letters) == [
        ("edge", "learner", "click_without_context"),
        ("edge", "learner", "not_single_object"),
        ("edge", "learner", "other_configuration"),
        ("server", "aggregator", "not_single_object"),
    ]
    (refused,) = dead_letters.read(logs, topics, played.system.partitions, ("asks", partition, offset))
    assert refused.reason == "click_without_context"
    found = verify(logs, played.system, played.keys)
    assert [one.source for one in found.tallies if one.findings] == [("sums", 0)], "nobody of ours wrote the junk"


def test_an_erasure_drops_an_event_that_waits_and_leaves_the_allowance(played, forget):
    played.put("ArmAsk", "ann", "waits")
    played.driver.pump()
    done = forget("ann")
    assert (done.topic, done.role, done.folded) == ("asks", "learner", True)
    assert "asks: 7 days" in done.as_text()
    assert "ann" not in done.as_text()
    assert sum(step.counts["forgotten"] for step in played.driver.steps) == 1
    played.put("ArmClick", "ann", "waits", reward=1)
    played.driver.pump()
    assert played.driver.steps[-1].counts["slot_sent"] == 0
    for event in ("again", "once more", "and more"):
        played.click("ann", event)
    played.driver.pump()
    assert sum(step.counts["allowance_spent"] for step in played.driver.steps) == 1
    assert verify(LogCopy.of(played.log), played.system, played.keys).ok


def test_an_export_loses_an_erased_users_events_and_verify_says_erased_not_changed(played, forget, tmp_path):
    forget("user-5")
    manifest = export_copy(LogCopy.of(played.log), played.system, tmp_path / "copy")
    assert "asks in clear" in manifest.notice
    assert verify_export(tmp_path / "copy", played.system, played.keys).ok
    assert erase_export(tmp_path / "copy", played.system, "user-5") == 4
    left = [r.value for _, part in open_export(tmp_path / "copy").of_topic("asks") for r in part.records]
    assert left.count(ERASED) == 4
    assert not [value for value in left if b"user-5:" in value]
    found = verify_export(tmp_path / "copy", played.system, played.keys)
    assert found.ok
    assert found.totals[Status.ERASED] > 0


SIZE = body_bytes(1)


class ClearDeviceService:
    """Each slot is a reward of whom nobody knows, in clear."""

    topic, partitions, opening = "slots", 1, None
    body_bytes, agreement = SIZE, b"{}"

    def __init__(self, system: System) -> None:
        self.digest = system.digest

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        return period_of(fields) != 3

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        slot = {"slot_id": fields["report_id"], "arm": fields["sealed"][0], "reward": 1}
        return "ArmSlot", {**slot, "config_digest": self.digest}

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
    system = prepare(tmp_path / "shown", parse_config(values))
    with pytest.raises(DeclarationError, match="expected one whose learners are devices"):
        device_service_of(system)
    served = replace(system, device_service=lambda: ClearDeviceService(system))
    played = play(served, KeySource(seed=4))
    settings = GatewaySettings(port=0, devices=DevicesSettings(relay_seconds=0.01))

    def slot(number: int, arm: int, period: int = 3) -> bytes:
        place = place_of(number.to_bytes(16, "little"), period, system.digest)
        return body_of(place, bytes([arm]) + bytes(SIZE - len(body_of(place, b"")) - 1))

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
    slots = [codec.decode(record.value)[1] for record in played.log.slice("slots", 0, 0).records]
    assert sorted(slot["arm"] for slot in slots) == [0, 0, 0, 1, 1, 2], (
        "a slot that came twice is appended like any other"
    )
    assert len(played.records("sums")) == 1, "a window of five slots was counted, and none was refused"
    assert not any(topic.startswith("dead-letters") for (topic, _), _ in played.log.partitions())
