"""Devices of BGTplanner: sealed slots of three rounds, signed models with the rounds that they ask for, predictions."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import KEYS, KeySource, artefacts_of, parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.broker import EmbeddedBroker
from hushstream.client.ratings import DeviceRounds, RoundOver, connect_rounds
from hushstream.edge import Answer, Transport
from hushstream.edge.ratings import RatingDriver
from hushstream.engine.devices.envelope import STATEMENT_RECORD, ModelBody, read_model
from hushstream.engine.devices.kept import BadAgreement, BadModel, DeviceError, OlderModel, WeakerAgreement
from hushstream.engine.devices.sealing import SEALING_BYTES, ContentOpener, period_of, place_of, read_slot
from hushstream.engine.devices.signing import Signer, SigningKeys
from hushstream.engine.records import InputRecord
from hushstream.engine.values import ConfigurationError
from hushstream.gateway.devices.server import DeviceGateway, SignedModels, SlotWriter, device_log
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.ops.check.verify import verify
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import Key, generate_keys
from hushstream.replay.bench.processes import started
from hushstream.replay.runners.direct import DirectDriver, MemoryLog
from hushstream.schemas import codec
from hushstream.systems.bgt.artefacts import agreement_of
from hushstream.systems.bgt.edge.device import Agreement, RatingDevice
from hushstream.systems.bgt.records import Statement, null_slots, packed_slots, slot_bytes
from hushstream.systems.bgt.system import KIND, RatingDeviceService, declare
from patience import Patience

ITEMS = 24
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
VALUES: dict[str, Any] = {
    "system": "bgt",
    "deployment": "films",
    "kind": "edge",
    "items": {"capacity": ITEMS},
    "scale": {"lowest": 1.0, "highest": 5.0},
    "privacy": {"epsilon": 10.0},
    "release": {"pairs": 8, "top": 10, "factors": 2},
}


class Deployed:
    """A deployment in memory, its devices, and what a gateway does for them."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        generate_keys(folder / KEYS, ("shuffler", "sealing", "signing"))
        self.keys = KeySource(folder / KEYS)
        self.folder = folder
        self.system = prepare(folder, parse_config({**VALUES, **changes}), keys=self.keys)
        self.agreement = Agreement.read((folder / "agreement.json").read_bytes())
        self.log = MemoryLog(lambda: NOW_MS)
        self.driver = DirectDriver(self.log, all_machines(self.system, self.keys), bytes(32))
        self.service = RatingDeviceService(self.system.core, agreement_of(self.system.core))
        self.models = SignedModels(self.service)
        self.writer = SlotWriter(self, self.service)
        self._told = {"statements": 0, "models": 0, "rounds": 0}
        self._on_record: Callable[[str, Any], None] = lambda topic, record: None

    async def start(self, on_record: Callable[[str, Any], None]) -> None:
        self._on_record, self._told = on_record, dict.fromkeys(self._told, 0)
        self.tell()

    def put(self, schema: str, **fields: Any) -> None:
        """What anybody writes who may write the collector's topic."""
        self.log.append("updates", 0, codec.encode(schema, fields))
        self.driver.pump()

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        offset = self.log.append(topic, partition, value)
        self.driver.pump()
        return offset

    async def stop(self) -> None:
        """See `SlotLog.stop`."""

    def tell(self) -> None:
        """Deliver what was published since, to the gateway and to the client."""
        for topic, told in self._told.items():
            for record in self.log.slice(topic, 0, told).records:
                if topic == "statements":
                    self.models.read(record)
                self._on_record(topic, record)
            self._told[topic] = self.log.end(topic, 0)

    async def hand_in(self, body: bytes) -> None:
        fields = read_slot(body, self.service.body_bytes)
        assert not self.service.is_stale(fields, NOW_MS)
        name, record = self.service.record(fields)
        await self.writer.append(0, codec.encode(name, record))

    def written(self, topic: str, schema: str) -> list[dict[str, Any]]:
        found = [codec.decode(record.value) for record in self.log.slice(topic, 0, 0).records]
        return [fields for name, fields in found if name == schema]


def rated(agreement: Agreement, count: int, seed: int = 5) -> list[RatingDevice]:
    """So many devices; the first has no ratings."""
    source, draw = random.Random(seed), np.random.default_rng(seed)
    found = [RatingDevice.begun(agreement, source.randbytes) for _ in range(count)]
    for device in found[1:]:
        device.rate(draw.permutation(ITEMS)[:6].tolist(), draw.choice([1.0, 3.0, 5.0], 6).tolist())
    return found


def one_slot(device: RatingDevice, now_ms: int = NOW_MS) -> bytes:
    """The body that leaves in the open round, when its time has come."""
    assert device.outgoing(now_ms) == []
    due = device.next_ms()
    assert due is not None
    (slot,) = device.outgoing(due)
    device.handed_in(slot.report_id)
    return slot.body


def left(device: RatingDevice, now_ms: int) -> list[Any]:
    """What leaves in the end: a delay is drawn when a round is learned of, and is over two hours later."""
    device.outgoing(now_ms)
    return device.outgoing(now_ms + 2 * HOUR_MS)


@pytest.fixture
def deployed(tmp_path: Path) -> Deployed:
    return Deployed(tmp_path / "films")


async def play_rounds(deployed: Deployed, devices: list[RatingDevice], rounds: int) -> list[bytes]:
    return [body for number in range(rounds) for body in await play_round(deployed, devices, number)]


async def play_round(deployed: Deployed, devices: list[RatingDevice], number: int) -> list[bytes]:
    bodies = []
    async with DeviceRounds(deployed, deployed.system) as client:
        for device in devices:
            bodies.append(one_slot(device))
            await deployed.hand_in(bodies[-1])
        await client.end_round(number)
        deployed.tell()
        assert deployed.models.body is not None
        for device in devices:
            assert device.take(deployed.models.body, NOW_MS).version == number + 1
    return bodies


def test_devices_answer_three_rounds_and_predict_with_the_model_that_was_signed(deployed: Deployed) -> None:
    devices = rated(deployed.agreement, 12)
    bodies = asyncio.run(play_rounds(deployed, devices, 3))
    released = deployed.written("releases", "RatingSums")
    assert [(one["round"], one["slots"]) for one in released] == [(0, 12), (1, 12), (2, 12)]
    assert not deployed.log.end("dead-letters-shuffler", 0)
    assert {len(body) for body in bodies} == {deployed.agreement.body_bytes}, "null and ratings have one size"
    topics = {topic.name for topic in deployed.system.topics}
    assert not {"ratings", "predictions"} & topics, "no topic holds ratings"
    predicted = devices[1].predict(range(ITEMS))
    assert ((predicted >= 1) & (predicted <= 5)).all()
    assert devices[1]._model.biases.any()
    assert [left(device, NOW_MS) for device in devices] == [[]] * 12, "no more is asked for"


def test_a_slot_holds_what_the_agent_makes_of_the_ratings_and_none_of_them_where_there_are_none(
    deployed: Deployed,
) -> None:
    opener = ContentOpener(deployed.keys.key("sealing"))
    empty, other = rated(deployed.agreement, 2)
    for device, is_null in ((empty, True), (other, False)):
        fields = read_slot(one_slot(device), deployed.agreement.body_bytes)
        place = place_of(fields["report_id"], 0, deployed.system.digest)
        content = opener.open(fields["sealed"], place)
        null = packed_slots(null_slots(1, deployed.agreement.config))[0]
        assert (content == null) is is_null
        assert len(content) == slot_bytes(deployed.agreement.config) == len(fields["sealed"]) - SEALING_BYTES


def test_the_collector_refuses_a_slot_in_clear_and_one_sealed_for_another_place(deployed: Deployed) -> None:
    _, device = rated(deployed.agreement, 2)
    fields = read_slot(one_slot(device), deployed.agreement.body_bytes)
    _, record = deployed.service.record(fields)
    clear = {
        "slot_id": bytes(16),
        "config_digest": deployed.system.digest,
        "round": 0,
        "content": packed_slots(null_slots(1, deployed.agreement.config))[0],
    }
    for schema, values in (
        ("RatingSlot", clear),
        ("SealedRatingSlot", {**record, "slot_id": b"x" * 16}),
        ("SealedRatingSlot", {**record, "sealed": record["sealed"][:-1]}),
        ("SealedRatingSlot", record),
        ("SealedRatingSlot", record),
    ):
        deployed.log.append("updates", 0, codec.encode(schema, values))
    deployed.driver.pump()
    letters = deployed.written("dead-letters-shuffler", "DeadLetter")
    assert [one["reason"] for one in letters] == ["unexpected_schema", "sealed_for_another", "sealed_for_another"]
    deployed.log.append(
        "updates",
        0,
        codec.encode("Seal", {"phase": 0, "origin": 0, "config_digest": deployed.system.digest, "after_click": -1}),
    )
    deployed.driver.pump()
    assert [one["slots"] for one in deployed.written("releases", "RatingSums")] == [1], "a repeat counts once"


def stated(deployed: Deployed) -> dict[str, Any]:
    """What the aggregator has signed of the newest version."""
    return deployed.written("statements", STATEMENT_RECORD)[-1]


def forged(deployed: Deployed, key: Key) -> dict[str, Any]:
    """A statement of the newest version's round that asks for other items, signed with a key that says it is first."""
    fields = stated(deployed)
    said, content = Statement.read(fields["statement"]), fields["content"]
    other = np.roll(np.frombuffer(content[-12 * said.top : -8 * said.top], "<i4"), 1).tobytes()
    content = content[: -12 * said.top] + other + content[-8 * said.top :]
    said = replace(said, content_sha256=hashlib.sha256(content).hexdigest())
    return {**said.signed(Signer(SigningKeys.first(key), (key,)), deployed.system.digest, content)}


def test_the_collector_opens_no_round_but_the_one_that_the_aggregator_has_signed(deployed: Deployed) -> None:
    devices = rated(deployed.agreement, 6)
    asyncio.run(play_rounds(deployed, devices, 1))
    first = stated(deployed)
    said = Statement.read(first["statement"])
    columns = {"config_digest": deployed.system.digest, "number": 1, "kind": "pairs", "kept": 0}
    top = np.arange(said.top, dtype="<i4").tobytes()
    deployed.put("RatingRound", **columns, top=top, gains=np.ones(said.top).tobytes())
    deployed.put(STATEMENT_RECORD, **forged(deployed, Key(bytes(32))))
    deployed.put(STATEMENT_RECORD, **{**first, "signature": bytes(64)})
    deployed.put(STATEMENT_RECORD, **{**first, "signing_key": 7})
    deployed.put(STATEMENT_RECORD, **{**first, "version": 2})
    deployed.put(STATEMENT_RECORD, **{**first, "version": -1})
    deployed.put(STATEMENT_RECORD, **{**first, "content": forged(deployed, Key(bytes(32)))["content"]})
    letters = deployed.written("dead-letters-shuffler", "DeadLetter")
    assert [one["reason"] for one in letters] == ["unexpected_schema", *["unsigned_round"] * 6]
    deployed.put(STATEMENT_RECORD, **first)
    # The same again, as of another gateway; and what the aggregator's own key has signed otherwise comes too late.
    deployed.put(STATEMENT_RECORD, **first)
    deployed.put(STATEMENT_RECORD, **forged(deployed, deployed.keys.key("signing")))
    letters = deployed.written("dead-letters-shuffler", "DeadLetter")[7:]
    assert [one["reason"] for one in letters] == ["bad_round"]
    asyncio.run(play_round(deployed, devices, 1))
    assert [one["slots"] for one in deployed.written("releases", "RatingSums")] == [6, 6]
    deployed.put(STATEMENT_RECORD, **first)
    (letter,) = deployed.written("dead-letters-shuffler", "DeadLetter")[8:]
    assert letter["reason"] == "other_round", "an earlier round's statement opens nothing again"
    asyncio.run(play_round(deployed, devices, 2))
    assert [one["slots"] for one in deployed.written("releases", "RatingSums")] == [6, 6, 6]


def test_a_gateway_passes_over_a_statement_under_another_number(deployed: Deployed) -> None:
    devices = rated(deployed.agreement, 4)
    asyncio.run(play_rounds(deployed, devices, 1))
    first, body, asked = stated(deployed), deployed.models.body, deployed.service.asked
    deployed.models.read(InputRecord(9, 0, codec.encode(STATEMENT_RECORD, {**first, "version": 3})))
    assert (deployed.models.body, deployed.service.asked) == (body, asked)
    asyncio.run(play_round(deployed, devices, 1))
    assert Statement.read(read_model(deployed.models.body or b"").statement).version == 2


def test_a_signing_key_that_rotates_signs_later_rounds_and_none_before(deployed: Deployed) -> None:
    before = deployed.system.core
    new = Key(b"n" * 32)
    chain = before.signing.followed_by(new, 2, (deployed.keys.key("signing"),))
    asyncio.run(play_rounds(deployed, rated(deployed.agreement, 4), 1))
    first = stated(deployed)
    said, held = Statement.read(first["statement"]), (deployed.keys.key("signing"), new)
    second = replace(said, version=2)
    old_signed = second.signed(Signer(before.signing, held), deployed.system.digest, first["content"])
    new_signed = second.signed(Signer(chain, held), deployed.system.digest, first["content"])
    assert (old_signed["signing_key"], new_signed["signing_key"]) == (0, 1)
    for fields, keys, known in (
        (first, chain, True),
        (first, before.signing, True),
        (new_signed, chain, True),
        (new_signed, before.signing, False),
        (old_signed, chain, False),
    ):
        with contextlib.nullcontext() if known else pytest.raises(BadModel, match="signature of key"):
            Statement.signed_in(fields, keys, deployed.system.digest)


def test_a_client_whose_folder_has_other_signing_keys_is_told_so_and_does_not_wait(deployed: Deployed) -> None:
    asyncio.run(play_rounds(deployed, rated(deployed.agreement, 2), 1))
    core = deployed.system.core
    chain = core.signing.followed_by(Key(b"n" * 32), 1, (deployed.keys.key("signing"),))

    async def end() -> None:
        async with DeviceRounds(deployed, declare(replace(core, signing=chain))) as client:
            with pytest.raises(RoundOver, match="signature of key 1, got that of key 0"):
                await client.end_round(1)
        async with DeviceRounds(deployed, deployed.system) as client:
            await client.end_round(1)

    asyncio.run(end())
    assert [one["slots"] for one in deployed.written("releases", "RatingSums")] == [2, 0]


def test_a_restart_sends_the_same_bytes_and_never_a_second_slot_of_a_round(deployed: Deployed) -> None:
    _, device = rated(deployed.agreement, 2)
    older = device.dump()
    device.outgoing(NOW_MS)
    due = device.next_ms()
    assert due is not None
    assert NOW_MS <= due < NOW_MS + HOUR_MS
    sent = device.outgoing(due)
    again = RatingDevice.load(deployed.agreement, device.dump(), random.Random(9).randbytes)
    again.rate([0], [5.0])
    assert again.outgoing(due + HOUR_MS) == sent
    again.handed_in(sent[0].report_id)
    after = RatingDevice.load(deployed.agreement, again.dump(), random.Random(9).randbytes)
    assert left(after, due) == []
    restored = RatingDevice.load(deployed.agreement, older, random.Random(9).randbytes)
    restored.rate([1], [5.0])
    restored.outgoing(NOW_MS)
    (second,) = restored.outgoing(NOW_MS + HOUR_MS)
    assert second.report_id == sent[0].report_id, "the collector counts an id once"


def test_erasing_ratings_refills_nothing(deployed: Deployed) -> None:
    _, device = rated(deployed.agreement, 2)
    one_slot(device)
    device.forget()
    device.rate([2], [1.0])
    assert left(device, NOW_MS) == []


def test_a_slot_of_a_round_that_is_over_is_dropped_and_the_next_one_answered(deployed: Deployed) -> None:
    late, *others = rated(deployed.agreement, 4)
    late.outgoing(NOW_MS)
    asyncio.run(play_rounds(deployed, others, 1))
    assert deployed.models.body is not None
    late.take(deployed.models.body, NOW_MS)
    fields = read_slot(one_slot(late), deployed.agreement.body_bytes)
    assert int.from_bytes(fields["period"], "little") == 1
    assert deployed.service.is_stale(fields | {"period": bytes(8)}, NOW_MS)
    assert not deployed.service.is_stale(fields, NOW_MS)


def test_the_slot_that_a_new_model_asks_for_has_its_delay_from_then_on_and_leaves_by_a_later_call(
    deployed: Deployed, tmp_path: Path
) -> None:
    class Gateway(Transport):
        """Its slots are counted by their round alone."""

        def __init__(self) -> None:
            super().__init__("http://localhost")
            self.rounds = list[int]()

        def send_slot(self, body: bytes) -> Answer:
            self.rounds.append(period_of(read_slot(body, deployed.agreement.body_bytes)))
            return Answer(204, {}, b"")

        def fetch_model(self, tag: str | None) -> Answer:
            body = deployed.models.body
            is_new = body is not None and tag != read_model(body).tag
            return Answer(200, {}, body) if is_new else Answer(304, {}, b"")

    gateway, now = Gateway(), [NOW_MS / 1000]
    driver = RatingDriver(deployed.folder / "agreement.json", tmp_path / "state", gateway, clock=lambda: now[0])
    driver.rate([1, 2], [5.0, 2.0])
    driver.sync()
    now[0] += 3600
    asyncio.run(play_rounds(deployed, rated(deployed.agreement, 3), 1))
    driver.sync()
    assert (gateway.rounds, driver.device.version) == ([0], 1)
    due = driver.device.next_ms()
    assert due is not None
    assert 0 <= due - now[0] * 1000 < HOUR_MS
    now[0] = due / 1000
    driver.sync()
    driver.close()
    assert gateway.rounds == [0, 1]


def test_a_device_pays_for_one_life_whatever_shares_of_it_new_agreements_name(tmp_path: Path) -> None:
    """Each agreement says rho 1 of the same price; three of them would be paid at their largest rounds."""
    shares = ([0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98])
    first, second, third = (
        Deployed(tmp_path / str(place), release={**VALUES["release"], "shares": one}).agreement
        for place, one in enumerate(shares)
    )
    assert first.promise[:3] == second.promise[:3] == third.promise[:3]
    draw = random.Random(9).randbytes
    device = rated(first, 2)[1]
    one_slot(device)
    with pytest.raises(WeakerAgreement, match="rest of the life first agreed to"):
        RatingDevice.agreed_anew(second, device.dump(), draw)
    # What is left of the life may go to other shares of it.
    device = RatingDevice.agreed_anew(third, rated(second, 2)[1].dump(), draw)
    one_slot(device)
    state = json.loads(device.dump())
    assert state["paid"] == third.price_from(0) - third.price_from(1)
    assert abs(state["life"] - third.price_from(0)) <= 2
    # The second round at its largest is paid under the second one, so the third round at its largest no more.
    device = RatingDevice.agreed_anew(second, device.dump(), draw)
    device._asked = replace(device._asked, number=1)
    one_slot(device)
    with pytest.raises(WeakerAgreement, match="rest of the life first agreed to"):
        RatingDevice.agreed_anew(third, device.dump(), draw)


def test_an_agreement_states_the_price_of_its_settings(tmp_path: Path) -> None:
    """The settings are under the digest, the promise is not: epsilon 20 beside a promise of 1 was accepted."""
    for place, changes in enumerate(({}, {"privacy": {"epsilon": 20.0}}, {"privacy": {"epsilon": 3.0, "epochs": 3}})):
        said = json.loads((Deployed(tmp_path / f"{place}", **changes).folder / "agreement.json").read_bytes())
        Agreement.read(json.dumps(said))
        for name, value in (
            ("epsilon_micro", 1_000_000),
            ("exchange_epsilon_micro", 2_000_000),
            ("delta_units", "1"),
            ("exchange_delta_units", "1"),
        ):
            said["promise"][name], known = value, said["promise"][name]
            with pytest.raises(BadAgreement, match="privacy cost of its settings"):
                Agreement.read(json.dumps(said))
            said["promise"][name] = known


def test_a_device_sends_null_in_rounds_that_its_promise_does_not_pay_for(tmp_path: Path) -> None:
    lifetime = {"epsilon": 7.0, "delta": 1e-5}
    deployed = Deployed(tmp_path / "films", privacy={"epsilon": 10.0, "lifetime": lifetime})
    assert deployed.agreement.rounds == 1
    assert deployed.agreement.price_from(1) == 0
    device = rated(deployed.agreement, 2)[1]
    device._asked = replace(device._asked, number=1)
    fields = read_slot(one_slot(device), deployed.agreement.body_bytes)
    place = place_of(fields["report_id"], period_of(fields), deployed.agreement.configuration)
    opened = ContentOpener(deployed.keys.key("sealing")).open(fields["sealed"], place)
    assert opened == packed_slots(null_slots(1, deployed.agreement.config))[0]


def test_a_device_goes_by_the_agreement_that_it_has(deployed: Deployed, tmp_path: Path) -> None:
    stronger = Deployed(tmp_path / "stronger", privacy={"epsilon": 5.0}).agreement
    weaker = Deployed(tmp_path / "weaker", privacy={"epsilon": 12.0}).agreement
    _, device = rated(deployed.agreement, 2)
    one_slot(device)
    draw = random.Random(9).randbytes
    with pytest.raises(BadAgreement, match="configuration that this device agreed to"):
        RatingDevice.load(stronger, device.dump(), draw)
    with pytest.raises(DeviceError, match="expected what a device wrote, got KeyError"):
        RatingDevice.load(stronger, b'{"format":1}', draw)
    with pytest.raises(WeakerAgreement, match="rest of the life first agreed to"):
        RatingDevice.agreed_anew(weaker, device.dump(), draw)
    anew = RatingDevice.agreed_anew(stronger, device.dump(), draw)
    anew.rate([1], [5.0])
    assert left(anew, NOW_MS) == [], "the first round of this life was answered under the first agreement"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("signing_key", "00" * 31 + "09"),
        ("configuration", "00" * 16),
        ("format", 2),
        ("system", "p2b"),
        ("features", [[1.0]]),
        ("settings", {}),
        ("slot", {"content_bytes": 1, "body_bytes": 1, "delay_ms": 1}),
    ],
)
def test_an_agreement_that_does_not_hold_together_is_refused(deployed: Deployed, place: str, value: Any) -> None:
    said = json.loads((deployed.folder / "agreement.json").read_bytes())
    with pytest.raises(BadAgreement):
        Agreement.read(json.dumps({**said, place: value}))
    said["settings"]["release"]["clip"] = 0.5
    with pytest.raises(BadAgreement, match="digest of its settings"):
        Agreement.read(json.dumps(said))


def test_only_what_the_aggregator_signed_for_this_agreement_is_taken_and_never_an_older_version(
    deployed: Deployed,
) -> None:
    devices = rated(deployed.agreement, 6)
    bodies = []

    async def run() -> None:
        async with DeviceRounds(deployed, deployed.system) as client:
            for number in range(2):
                for device in devices[:5]:
                    await deployed.hand_in(one_slot(device))
                await client.end_round(number)
                deployed.tell()
                bodies.append(deployed.models.body)
                for device in devices[:5]:
                    device.take(bodies[-1], NOW_MS)

    asyncio.run(run())
    first, second = bodies
    device = devices[5]
    before = device.dump()
    stated = json.loads(device.take(second, NOW_MS).as_bytes())
    with pytest.raises(OlderModel, match="version 2 or later"):
        device.take(first, NOW_MS)
    signer = Signer(deployed.system.core.signing, (deployed.keys.key("signing"),))

    def signed(**changes: Any) -> bytes:
        values = {**stated, **changes}
        said = Statement(**values).as_bytes()
        number, signature = signer.sign(values["version"], said)
        core = deployed.system.core
        body = ModelBody(said, number, signature, core.signing, core.sealing, second[-stated["content_bytes"] :])
        return body.as_bytes()

    assert signed() == second
    device = RatingDevice.load(deployed.agreement, before, random.Random(1).randbytes)
    for changes, why in (
        ({"deployment": "other"}, "deployment and configuration"),
        ({"configuration": "00" * 16}, "deployment and configuration"),
        ({"epsilon_micro": 10_000_001}, "as private as was agreed"),
        ({"private_as_stated": False}, "as private as was agreed"),
        ({"expires_ms": NOW_MS}, "not expired"),
        ({"content_sha256": "00" * 32}, "that were stated"),
        ({"factors": 9}, "as the configuration has them"),
        ({"kind": "pairs"}, "model: "),
        ({"version": -1}, "round -1"),
    ):
        with pytest.raises(BadModel, match=why):
            device.take(signed(**changes), NOW_MS)
    flipped = bytearray(signed())
    flipped[13 + len(read_model(bytes(flipped)).statement)] ^= 1  # of the signature
    with pytest.raises(BadModel):
        device.take(bytes(flipped), NOW_MS)
    assert device.dump() == before


def test_only_the_round_that_is_open_can_be_ended(deployed: Deployed) -> None:
    async def run() -> None:
        async with DeviceRounds(deployed, deployed.system) as client:
            with pytest.raises(RoundOver):
                await client.end_round(1)
            await client.end_round(0)
            with pytest.raises(RoundOver):
                await client.end_round(1)

    asyncio.run(run())
    assert [one["slots"] for one in deployed.written("releases", "RatingSums")] == [0]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"partitions": {"rater": 2}}, "partitions.rater"),
        ({"release": {"mechanism": "exact"}}, "release.mechanism"),
        ({"kind": "hosted", "feedback": {"settle_seconds": 5}}, "feedback.settle_seconds"),
        ({"kind": "hosted", "model": {"valid_seconds": 5}}, "model.valid_seconds"),
        ({"model": {"valid_seconds": 1e9}}, "model.valid_seconds"),
        ({"kind": "other"}, "kind"),
    ],
)
def test_what_does_not_go_with_devices_is_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        parse_config({**VALUES, **changes})


def test_hosted_deployments_keep_their_digests() -> None:
    hosted = parse_config({**VALUES, "kind": "hosted"})
    plain = parse_config({name: value for name, value in VALUES.items() if name != "kind"})
    assert hosted == plain
    assert replace(hosted, kind="edge", settle_seconds=60.0) == parse_config(
        {**VALUES, "feedback": {"settle_seconds": 60}}
    )


def test_the_guarantee_says_what_devices_show() -> None:
    config = parse_config(VALUES)
    said = {fact.name: fact.text for fact in KIND.facts(config, artefacts_of(Path("nowhere")))}
    names = {"send", "see", "ask", "cleared", "restored", "killed", "flooded", "ended"}
    assert {f"devices_{name}" for name in names} <= said.keys()
    assert "within 1 hour after" in said["devices_send"]
    assert "opens only rounds that the aggregator has signed" in said["devices_ended"]
    promise = KIND.guarantee(config, artefacts_of(Path("nowhere")))
    assert promise.deployment == "edge"
    assert {one.topic: str(one.form) for one in promise.contents}["updates"] == "sealed"
    assert any("controls the device" in one for one in promise.not_protected)
    hosted = parse_config({**VALUES, "kind": "hosted"})
    assert not any("devices" in fact.name for fact in KIND.facts(hosted, artefacts_of(Path("nowhere"))))


@pytest.mark.process
def test_devices_gateway_collector_and_aggregator_as_they_are_deployed(tmp_path: Path) -> None:
    """Two rounds over HTTP; what was published follows from the logs."""
    folder = tmp_path / "deployment"
    folder.mkdir()
    generate_keys(folder / KEYS, ("shuffler", "sealing", "signing"))
    keys = KeySource(folder / KEYS)
    system = prepare(folder, parse_config(VALUES), keys=keys)

    async def play() -> None:
        async with EmbeddedBroker() as broker, contextlib.AsyncExitStack() as stack:
            connection = Connection(broker.bootstrap, "films.")
            await apply_async(connection, system)
            for role in ("collector", "aggregator"):
                arguments = ["-m", "hushstream.cli", "worker", role, "--deployment", str(folder), "--gather", "0"]
                arguments += ["--bootstrap", broker.bootstrap]
                await stack.enter_async_context(started(f"worker-{role}", arguments, folder))
            settings = GatewaySettings(port=0, devices=DevicesSettings(relay_seconds=0.1))
            log = device_log(broker.bootstrap, "films.", Security(), system)
            gateway = await stack.enter_async_context(DeviceGateway(system=system, settings=settings, log=log))
            transport, offset = Transport(f"http://127.0.0.1:{gateway.port}"), [0.0]
            threads = stack.enter_context(ThreadPoolExecutor(4))
            asked = asyncio.get_running_loop().run_in_executor
            draw = np.random.default_rng(5)

            def driver(number: int) -> RatingDriver:
                where = (folder / "agreement.json", tmp_path / f"device-{number}")
                return RatingDriver(*where, transport, clock=lambda: time.time() + offset[0])

            for number in range(8):
                with driver(number) as device:
                    device.rate(draw.permutation(ITEMS)[:6].tolist(), draw.choice([1.0, 3.0, 5.0], 6).tolist())
            async with connect_rounds(broker.bootstrap, folder) as client:
                for round_number in range(2):
                    for _ in range(2):  # the first learns of the round, the second comes when its time has come
                        with contextlib.ExitStack() as opened:
                            drivers = [opened.enter_context(driver(number)) for number in range(8)]
                            await asyncio.gather(*(asked(threads, one.sync) for one in drivers))
                        assert not any(one.faults for one in drivers)
                        offset[0] += 2 * 3600.0
                    waiting = Patience(90.0)
                    while True:
                        try:
                            await client.end_round(round_number)
                        except RoundOver:
                            assert not waiting.over, "its opening was not read in time"
                            await asyncio.sleep(0.2)
                        else:
                            break
                    while True:
                        found = await asked(threads, transport.fetch_model, None)
                        version = Statement.read(read_model(found.body).statement).version if found.status == 200 else 0
                        if version == round_number + 1:
                            break
                        assert not waiting.over, "no model was signed in time"
                        await asyncio.sleep(0.2)
            for number in range(8):
                with driver(number) as one:
                    await asked(threads, one.sync)
                    assert one.device.version == 2
                    assert len(one.predict([1, 2])) == 2
            await stack.aclose()
            copy = await copy_async(connection, system.partitions)
        checked = verify(copy, system, keys, ("collector", "aggregator"))
        assert checked.exit_code == 0, checked.as_text()
        assert "statements/0: 2 equal" in checked.as_text()
        sums = [codec.decode(one.value)[1] for part in copy.of_topic("releases") for one in part[1].records]
        assert [one["slots"] for one in sums if "slots" in one] == [8, 8]

    asyncio.run(play())
