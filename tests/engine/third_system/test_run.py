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
from hushstream.gateway.devices.gateway import DeviceGateway, device_service_of
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
    assert found.of("tallies")[Status.EQUAL] == len(played.records("tallies"))
    assert found.of("standings")[Status.EQUAL] == len(played.records("standings")) + 1
    tally = played.log.slice("tallies", 0, 0).records[0].value
    altered = codec.encode("Tally", {**codec.decode(tally)[1], "private_as_stated": True})
    assert altered != tally
    played.log.append("tallies", 0, altered)
    changed = verify(LogCopy.of(played.log), played.system, played.keys)
    assert not changed.ok
    assert [one.source for one in changed.tallies if one.findings] == [("tallies", 0)]


def test_without_the_zones_key_its_role_is_named_as_unchecked(played, tmp_path):
    found = verify(LogCopy.of(played.log), played.system, KeySource(tmp_path))
    assert found.unchecked == ("tally",)
    assert found.of("standings")[Status.EQUAL] == len(played.records("standings")) + 1


def test_the_budget_reads_its_ledger_and_sees_an_entry_that_is_missing(played):
    logs = LogCopy.of(played.log)
    found = budget.read(logs, played.system)
    assert found.ok
    assert budget.budget_topics(played.system) == ("spent-on-votes", "marks-ballots")
    assert dict(found.by_mechanism) == {"histogram": len(played.records("tallies"))}
    assert {account.spent.epsilon_micro for account in found.charges} == {500_000}
    assert [account.spent.epsilon_micro for account in found.deployments] == [1_000_000, 1_000_000]
    assert "votes of a user: 2 planned, 2 fit" in found.as_text()
    assert ("One person in a whole life, 2 votes of one user: user-level epsilon 2, delta ") in found.as_text()


def test_refused_votes_go_to_their_zones_dead_letters_with_the_systems_own_reason(played):
    partition, offset = played.vote("user-3", 7)
    played.vote("user-4", 1, "other", config_digest=bytes(16))
    played.log.append("votes", partition, b"junk")
    played.log.append("tallies", 0, b"junk")
    played.driver.pump()
    logs = LogCopy.of(played.log)
    topics = tuple(topic.name for topic in played.system.topics if topic.holds_dead_letters)
    assert topics == ("dead-letters-ballots", "dead-letters-board")
    letters = dead_letters.read(logs, topics, played.system.partitions)
    assert sorted((letter.zone, letter.role, letter.reason) for letter in letters) == [
        ("ballots", "tally", "not_single_object"),
        ("ballots", "tally", "other_configuration"),
        ("ballots", "tally", "unknown_option"),
        ("board", "board", "not_single_object"),
    ]
    (refused,) = dead_letters.read(logs, topics, played.system.partitions, ("votes", partition, offset))
    assert refused.reason == "unknown_option"
    found = verify(logs, played.system, played.keys)
    assert [one.source for one in found.tallies if one.findings] == [("tallies", 0)], "nobody of ours wrote the junk"


def test_an_erasure_drops_a_vote_that_waits_and_leaves_the_allowance(played, forget):
    played.vote("ann", 0)
    played.driver.pump()
    done = forget("ann")
    assert (done.topic, done.role, done.folded) == ("votes", "tally", None)
    assert "only the zone of the tally can see whether it has been folded" in done.as_text()
    assert "votes: 7 days" in done.as_text()
    assert "ann" not in done.as_text()
    assert sum(step.counts["forgotten"] for step in played.driver.steps) == 1
    played.vote("ann", 0, "again")
    played.vote("ann", 0, "once more")
    played.driver.pump()
    assert played.driver.steps[-1].counts["allowance_spent"] == 1
    assert verify(LogCopy.of(played.log), played.system, played.keys).ok


def test_an_export_loses_an_erased_users_votes_and_verify_says_erased_not_changed(played, forget, tmp_path):
    forget("user-5")
    manifest = export_copy(LogCopy.of(played.log), played.system, tmp_path / "copy")
    assert "votes in clear" in manifest.notice
    assert verify_export(tmp_path / "copy", played.system, played.keys).ok
    assert erase_export(tmp_path / "copy", played.system, "user-5") == 2
    left = [r.value for _, part in open_export(tmp_path / "copy").of_topic("votes") for r in part.records]
    assert left.count(ERASED) == 2
    assert not [value for value in left if b"user-5:" in value]
    found = verify_export(tmp_path / "copy", played.system, played.keys)
    assert found.ok
    assert found.totals[Status.ERASED] > 0


SIZE = body_bytes(1)


class BallotDeviceService:
    """Of a poll: each slot is a vote of whom nobody knows, in clear, in the open round of votes."""

    topic, partitions, opening = "votes", 1, None
    body_bytes, agreement = SIZE, b"{}"

    def __init__(self, system: System) -> None:
        self.digest = system.digest

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
        device_service_of(system)
    served = replace(system, device_service=lambda: BallotDeviceService(system))
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
    assert sorted(vote["option"] for vote in votes) == [0, 0, 0, 1, 1, 2], (
        "a slot that came twice is appended like any other"
    )
    assert len(played.records("tallies")) == 1, "a window of five votes was counted, and none was refused"
    assert not any(topic.startswith("dead-letters") for (topic, _), _ in played.log.partitions())
