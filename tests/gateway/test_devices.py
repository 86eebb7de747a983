"""Slots of devices over HTTP: what is taken, how it lies in the log, what is refused, and the model that comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.broker import EmbeddedBroker
from hushstream.client.kafka import KafkaEventLog
from hushstream.edge import DeviceDriver
from hushstream.engine.declare.declaration import Conversation
from hushstream.engine.declare.role import DeclarationError
from hushstream.engine.devices.signing import Signer
from hushstream.engine.values import ConfigurationError
from hushstream.gateway.devices.relay import SlotRelay
from hushstream.gateway.devices.server import DeviceGateway, device_log
from hushstream.gateway.problems import LogBusy, Problem
from hushstream.gateway.settings import DevicesSettings, GatewaySettings, read_gateway
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy_async
from hushstream.ops.topics import apply_async
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.device import Agreement, Device
from hushstream.systems.p2b.models import Statement, content_of
from hushstream.systems.p2b.prepared import agreement_of

KEYS = KeySource(seed=5)
VALUES: dict[str, Any] = {
    "deployment": "shop",
    "kind": "edge",
    "items": {"capacity": 3},
    "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}},
    "expected_slots": 100,
    "slot": {"after_interactions": 1},
    "feedback": {"attribution_window_seconds": 1.0, "settle_seconds": 1.0},
    "partitions": {"shuffler": 3},
}
OCTETS = {"Content-Type": "application/octet-stream"}


class Place:
    """A deployment on an embedded broker, a gateway for its devices, and who calls that."""

    def __init__(self, system: Any, connection: Connection, session: aiohttp.ClientSession, base: str) -> None:
        self.system, self.connection, self.session, self.base = system, connection, session, base
        self.agreement = Agreement.read(agreement_of(system.core))

    def slot(self, seed: int, *, agreement: Agreement | None = None, shift_ms: int = 0) -> bytes:
        """A body that a device sends now."""
        now_ms = int(time.time() * 1000) + shift_ms
        device = Device.begun(agreement or self.agreement, random.Random(seed).randbytes)
        device.decide("visit", {"country": "fr"}, now_ms - 10_000)
        return device.outgoing(now_ms)[0].body

    async def post(self, body: bytes, **headers: str) -> tuple[int, Any, bytes]:
        async with self.session.post(f"{self.base}/v1/slots", data=body, headers={**OCTETS, **headers}) as answer:
            return answer.status, answer.headers, await answer.read()

    async def get(self, path: str, **headers: str) -> tuple[int, Any, bytes]:
        async with self.session.get(self.base + path, headers=headers) as answer:
            return answer.status, answer.headers, await answer.read()

    async def reports(self) -> list[tuple[int, bytes]]:
        """Partition and value of every slot in the log."""
        copy = await copy_async(self.connection, self.system.partitions)
        return [(partition, record.value) for partition, part in copy.of_topic("reports") for record in part.records]


@contextlib.asynccontextmanager
async def placed(folder: Path, **settings: Any) -> AsyncIterator[Place]:
    system = prepare(folder / "deployment", parse_config(VALUES), keys=KEYS)
    devices = DevicesSettings(**{"relay_seconds": 0.05, **settings.pop("devices", {})})
    async with EmbeddedBroker() as broker:
        connection = Connection(broker.bootstrap, "shop.")
        await apply_async(connection, system)
        made = GatewaySettings(**{"port": 0, "devices": devices, **settings})
        log = device_log(broker.bootstrap, "shop.", Security(), system)
        async with DeviceGateway(system=system, settings=made, log=log) as gateway, aiohttp.ClientSession() as session:
            yield Place(system, connection, session, f"http://127.0.0.1:{gateway.port}")


def code(answer: tuple[int, Any, bytes]) -> tuple[int, str]:
    status, headers, body = answer
    assert headers["Content-Type"] == "application/problem+json"
    assert "Set-Cookie" not in headers
    return status, json.loads(body)["code"]


def test_slots_lie_in_the_log_without_a_key_in_the_partition_of_their_id(tmp_path):
    async def play() -> None:
        async with placed(tmp_path) as place:
            bodies = [place.slot(seed) for seed in range(12)]
            answers = await asyncio.gather(*(place.post(body) for body in (*bodies, *bodies[:4])))
            assert {(status, body) for status, _, body in answers} == {(204, b"")}
            found = await place.reports()
            assert len(found) == 12
            for partition, value in found:
                name, fields = codec.decode(value)
                assert name == "SealedFeatureSlot"
                assert partition == int.from_bytes(fields["report_id"][:8], "little") % 3
            assert {len(value) for _, value in found} == {len(found[0][1])}
            assert {body[1:17] for body in bodies} == {codec.decode(value)[1]["report_id"] for _, value in found}

    asyncio.run(play())


def test_what_is_no_slot_of_the_deployment_is_refused_and_nothing_of_it_is_repeated(tmp_path):
    async def play() -> None:
        async with placed(tmp_path) as place:
            good = place.slot(1)
            other = prepare(tmp_path / "other", parse_config({**VALUES, "deployment": "other"}), keys=KEYS)
            foreign = place.slot(1, agreement=Agreement.read(agreement_of(other.core)))
            day_ms = place.agreement.period_ms
            wanted = {
                (400, "bad-slot"): [good[:-1], b"\x02" + good[1:], b""],
                (413, "body-too-large"): [good + b"x"],
                (409, "other-configuration"): [foreign],
                (422, "stale-period"): [place.slot(1, shift_ms=-3 * day_ms), place.slot(1, shift_ms=2 * day_ms)],
            }
            for expected, bodies in wanted.items():
                for body in bodies:
                    answer = await place.post(body)
                    assert code(answer) == expected
                    assert good[1:17] not in answer[2]
            assert code(await place.post(good, Cookie="session=1")) == (400, "identifying-header")
            assert code(await place.post(good, Authorization="Bearer x")) == (400, "identifying-header")
            assert code(await place.post(good, **{"Content-Type": "text/plain"})) == (415, "unsupported-media-type")
            assert code(await place.get("/v1/slots")) == (405, "method-not-allowed")
            assert code(await place.get("/v1/decide")) == (404, "not-found")
            assert await place.reports() == []
            # The period before the current one is taken: a device sends when it is on again.
            assert (await place.post(place.slot(1, shift_ms=-day_ms)))[0] == 204

    asyncio.run(play())


def test_an_address_that_sends_too_much_is_refused_and_a_proxy_names_addresses(tmp_path):
    async def play() -> None:
        limits = {"slots_per_hour": 0.001, "slots_burst": 2, "address_header": "X-Forwarded-For"}
        async with placed(tmp_path, devices=limits) as place:
            for address in ("192.0.2.1", "192.0.2.2"):
                named = {"X-Forwarded-For": f"x, {address}"}
                answers = [await place.post(place.slot(seed), **named) for seed in (1, 2)]
                assert [status for status, _, _ in answers] == [204, 204]
                third = await place.post(place.slot(3), **{"X-Forwarded-For": address})
                assert code(third) == (429, "too-many-requests")
                assert int(third[1]["Retry-After"]) >= 1
            # Proxies that listen on a socket of IPv6 say addresses of IPv4 so: all of them would be one network.
            for address, status in (("192.0.2.1", 429), ("192.0.2.9", 204)):
                assert (await place.post(place.slot(6), **{"X-Forwarded-For": f"::ffff:{address}"}))[0] == status
            # A household has a whole network of IPv6 addresses.
            for host in ("2001:db8:0:1::1", "2001:db8:0:1::2"):
                assert (await place.post(place.slot(4), **{"X-Forwarded-For": host}))[0] == 204
            assert (await place.post(place.slot(5), **{"X-Forwarded-For": "2001:db8:0:1:ffff::"}))[0] == 429

    asyncio.run(play())


def test_only_a_proxy_of_the_deployment_names_addresses(tmp_path):
    async def play() -> None:
        limits = {"slots_per_hour": 0.001, "slots_burst": 2, "address_header": "X-Forwarded-For"}
        async with placed(tmp_path, devices={**limits, "proxies": ["203.0.113.0/24", "2001:db8::/32"]}) as place:
            statuses = [(await place.post(place.slot(n), **{"X-Forwarded-For": f"192.0.2.{n}"}))[0] for n in range(3)]
            assert statuses == [204, 204, 429], "this machine is no proxy, so the header says nothing"

    asyncio.run(play())


def test_a_signed_model_is_handed_out_and_forged_or_older_ones_are_passed_over(tmp_path):
    async def play() -> None:
        async with placed(tmp_path) as place:
            assert code(await place.get("/v1/model")) == (404, "no-model")
            records = [_stated(place.system, version) for version in (2, 1)]
            forged = {**_stated(place.system, 3), "signature": bytes(64)}
            topics = Conversation("statements", (), None)
            writer = KafkaEventLog(place.connection.bootstrap, "shop.", topics=topics)
            await writer.start(lambda partition, offset, value: None)
            for fields in (records[0], forged, records[1]):
                await writer.append("statements", 0, codec.encode("ModelStatement", fields))
            await writer.append("statements", 0, b"no record")
            await writer.stop()

            async def there() -> bool:
                return (await place.get("/v1/model"))[0] == 200

            async with asyncio.timeout(120):
                while not await there():  # noqa: ASYNC110 - as a device does
                    await asyncio.sleep(0.05)
            _, headers, body = await place.get("/v1/model")
            device = Device.begun(place.agreement, random.Random(1).randbytes)
            assert device.take(body, int(time.time() * 1000)).version == 2
            assert headers["ETag"] == device.tag
            assert (await place.get("/v1/model", **{"If-None-Match": device.tag}))[0] == 304
            assert (await place.get("/v1/agreement"))[2] == agreement_of(place.system.core)

    asyncio.run(play())


def _stated(system: Any, version: int) -> dict[str, Any]:
    core = system.core
    layout, size = core.linear.layout, 8 * core.linear.layout.arms * core.linear.layout.cells

    variances = np.full(size // 8, 0.05).astype("<f8").tobytes()
    content, digest = content_of(bytes(size), variances)
    now_ms = int(time.time() * 1000)
    statement = Statement(
        deployment="shop", configuration=core.digest.hex(), layout=core.linear.layout_digest.hex(), arms=layout.arms,
        cells=layout.cells, version=version, issued_ms=now_ms, expires_ms=now_ms + 10**9, reward_variance=0.1,
        epsilon_micro=1_000_000, delta_units="0", private_as_stated=True, content_sha256=digest,
        content_bytes=len(content),
    ).as_bytes()  # fmt: skip
    number, signature = Signer(core.signing, (KEYS.key("signing"),)).sign(version, statement)
    named = {"config_digest": system.digest, "version": version, "signing_key": number}
    return {**named, "statement": statement, "signature": signature, "content": content}


def test_pages_of_the_named_sites_alone_may_send(tmp_path):
    async def play() -> None:
        async with placed(tmp_path, cors_origins=("https://shop.example",)) as place:
            for origin, status in (("https://shop.example", 204), ("https://evil.example", 405)):
                asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
                async with place.session.options(f"{place.base}/v1/slots", headers=asked) as answer:
                    assert answer.status == status
                    assert answer.headers.get("Access-Control-Allow-Origin") == (origin if status == 204 else None)
            _, headers, _ = await place.post(place.slot(1), Origin="https://shop.example")
            assert headers["Access-Control-Expose-Headers"] == "Date, ETag, Retry-After"
            assert "Access-Control-Allow-Credentials" not in headers

    asyncio.run(play())


def test_a_driver_hands_in_its_slot_through_a_restart(tmp_path):
    async def play() -> None:
        async with placed(tmp_path) as place:
            (tmp_path / "agreement.json").write_bytes(agreement_of(place.system.core))
            offset = [-100.0]

            def driver() -> DeviceDriver:
                where = (tmp_path / "agreement.json", tmp_path / "state")
                return DeviceDriver(*where, place.base, clock=lambda: time.time() + offset[0])

            first = driver()
            item = first.decide("visit", {"country": "fr"}).arm
            first.shown("visit", item)
            first.close()
            offset[0] = 0.0
            with driver() as again:
                await asyncio.to_thread(again.sync)
            assert len(await place.reports()) == 1
            with driver() as last:
                await asyncio.to_thread(last.sync)
            assert len(await place.reports()) == 1
            assert (again.faults, again.device.next_ms()) == ([], None)
            assert (tmp_path / "state").stat().st_mode & 0o077 == 0

    asyncio.run(play())


def test_the_relay_tells_who_waits_when_the_log_refuses_and_takes_no_more_than_it_may():
    async def play() -> None:
        failing = HushstreamError("the log refused")

        async def refuse(partition: int, value: bytes) -> None:
            raise failing

        relay = SlotRelay(refuse, 2, 0.01, most=2)
        found = await asyncio.gather(*(relay.send(bytes(16), bytes([n])) for n in range(3)), return_exceptions=True)
        assert [type(one) for one in found] == [HushstreamError, HushstreamError, LogBusy]
        assert relay.waiting == 0
        values = (b"one", b"two", b"one", b"three")
        found = await asyncio.gather(*(relay.send(bytes(16), one) for one in values), return_exceptions=True)
        both = [type(one) for one in found]
        assert both == 2 * [HushstreamError] + 2 * [LogBusy], "a slot that waits is refused like any other"

    asyncio.run(play())


def test_when_and_how_an_answer_comes_does_not_tell_that_the_slot_was_known():
    """Alone, with others, in the midst of a batch and of an append; where the log is down and where it refuses.

    The log takes a fifth of a second; an answer without its share of either wait differs by a tenth or more. A clock
    may tell of a wait some tenths of a millisecond too little.
    """
    both_waits = 0.45
    down = asyncio.Event()
    refused: set[int] = set()

    async def append(partition: int, value: bytes) -> None:
        await asyncio.sleep(0.2)
        if partition in refused:
            raise HushstreamError("the log refused")
        if down.is_set():
            await asyncio.Event().wait()

    async def play() -> None:
        relay = SlotRelay(append, 2, 0.3, most=100)

        async def seconds(value: bytes, after: float = 0.0, report_id: bytes = bytes(16)) -> float:
            await asyncio.sleep(after)
            begun = time.monotonic()
            await relay.send(report_id, value)
            return time.monotonic() - begun

        assert await seconds(b"known") >= both_waits
        assert await seconds(b"known") >= both_waits
        first, late, known, flying, new = await asyncio.gather(
            seconds(b"first"),
            *(seconds(value, after=0.15) for value in (b"late", b"known")),
            *(seconds(value, after=0.4) for value in (b"late", b"new")),
        )
        assert first >= both_waits
        assert abs(late - known) < 0.05, (late, known)
        assert abs(flying - new) < 0.05, (flying, new)

        refused.add(0)
        alone = await asyncio.gather(seconds(b"known"), return_exceptions=True)
        both = await asyncio.gather(seconds(b"known"), seconds(b"newer"), return_exceptions=True)
        assert [type(one) for one in (*alone, *both)] == 3 * [HushstreamError]
        refused.clear()
        down.set()
        waiting = [asyncio.create_task(seconds(value)) for value in (b"known", b"first")]
        await asyncio.sleep(1.0)
        assert not any(one.done() for one in waiting), "a batch of known slots is answered while the log is down"
        assert relay.waiting == 2
        for one in waiting:
            one.cancel()

    asyncio.run(play())


def test_the_order_of_a_batch_follows_from_a_key_of_the_process_and_not_from_who_came_first():
    """64 slots: that a keyed order keeps the order of arrival has a chance of 1 in 64 factorial."""

    async def play() -> list[bytes]:
        order: list[bytes] = []

        async def append(partition: int, value: bytes) -> None:
            order.append(value)

        relay = SlotRelay(append, 1, 0.05, most=100)
        await asyncio.gather(*(relay.send(bytes(16), bytes([n])) for n in range(64)))
        return order

    first, second = asyncio.run(play()), asyncio.run(play())
    assert sorted(first) == sorted(second) == [bytes([n]) for n in range(64)]
    assert first not in (second, sorted(first))


_RATINGS = {"system": "bgt", "deployment": "shop", "items": {"capacity": 3}, "scale": {"lowest": 1.0, "highest": 5.0}}
_HOSTED = {**VALUES, "kind": "hosted", "slot": {"after_interactions": 1}}


@pytest.mark.parametrize("values", [_RATINGS, _HOSTED], ids=["others-slots", "hosted"])
def test_a_deployment_that_declares_no_such_devices_is_refused_before_anything_is_listened_to(tmp_path, values):
    system = prepare(tmp_path / "deployment", parse_config(values), keys=KEYS)
    settings = GatewaySettings(port=0, devices=DevicesSettings())

    async def play() -> None:
        log = device_log("127.0.0.1:1", "shop.", Security(), system)
        async with DeviceGateway(system=system, settings=settings, log=log):
            raise AssertionError("expected it to refuse")

    with pytest.raises(DeclarationError, match="shop: expected one whose learners are devices"):
        asyncio.run(play())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("devices: {slots_per_hour: 0}", "devices.slots_per_hour"),
        ("devices: {proxies: [shop.example]}", "devices.proxies"),
        ("devices: {nothing: 1}", "known are relay_seconds"),
        ("{devices: {}, tokens_file: x}", "devices prove nothing"),
        ("{devices: {}, host: 0.0.0.0}", "certificate_file"),
    ],
)
def test_impossible_settings_of_devices_are_refused(tmp_path, text, error):
    file = tmp_path / "gateway.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=error):
        read_gateway(file, {})


def test_an_attestation_that_is_not_installed_is_refused_and_one_that_refuses_is_not_passed(tmp_path, monkeypatch):
    from hushstream.gateway.devices import server as made

    class Check:
        async def admits(self, evidence: str | None, body_digest: bytes) -> bool:
            return evidence == "good" and len(body_digest) == 32

    async def play() -> None:
        async with placed(tmp_path) as place:
            assert code(await place.post(place.slot(1))) == (403, "not-attested")
            assert (await place.post(place.slot(1), **{"Hushstream-Attestation": "good"}))[0] == 204

    with pytest.raises(ConfigurationError, match="expected one that is installed"):
        made.attestation_of("none")
    monkeypatch.setattr(made, "attestation_of", lambda name: Check())
    asyncio.run(play())
    assert Problem("not-attested").kind.retry_seconds is None
