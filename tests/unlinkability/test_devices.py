"""Slots of devices: whoever sees the traffic to the gateway, and the topics, is at chance within a batch of the relay.

The attacker sees when each address came (not what travels within TLS), every record that the relay appends, and when;
they know what each device's slot should hold. Who runs the gateway sees the report ids as well, and so which sealed
slot came from which address: that is said (`hushstream guarantee`), and what they do not see is what it holds.

Sizes. 2,000 devices of each system in 20 batches give 1,000 pairs within batches; the attacker learns from half of them
and is tried on the other half, right with probability 1/2 for one who knows nothing. *At chance* means that the exact
interval at confidence 1 - 1e-6 holds 1/2 (a false alarm has probability 1e-6), *above chance* that guessing does as
well with probability below 1e-6; `tests/unlinkability/test_attacker.py` computes the power for fewer pairs than there
are here: 65 % right is found with probability above 0.94, 70 % above 0.9999. Contents and order of arrival are seeded;
the keys of seals and of the relay's order are drawn anew.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.engine.devices.sealing import ContentOpener, SlotPlace, read_slot
from hushstream.gateway.devices import relay as relaying
from hushstream.schemas import codec
from hushstream.systems.bgt.artefacts import BgtSystem
from hushstream.systems.bgt.edge.device import Agreement as RatingAgreement
from hushstream.systems.bgt.edge.device import RatingDevice
from hushstream.systems.p2b.edge.device import Agreement as VisitAgreement
from hushstream.systems.p2b.edge.device import Device

BATCHES, EACH, PARTITIONS = 20, 100, 4
NOW_MS = 1_700_000_000_000
FALSE_ALARM = 1e-6
KEYS = KeySource(seed=5)
VISITS: dict[str, Any] = {
    "deployment": "shop",
    "kind": "edge",
    "items": {"capacity": 3},
    "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}},
    "expected_slots": 2_000,
    "slot": {"after_interactions": 1},
    "partitions": {"shuffler": PARTITIONS},
}
RATINGS: dict[str, Any] = {
    "system": "bgt",
    "deployment": "films",
    "kind": "edge",
    "items": {"capacity": 24},
    "scale": {"lowest": 1.0, "highest": 5.0},
    "privacy": {"epsilon": 10.0},
    "release": {"pairs": 8, "top": 10, "factors": 2},
}


@dataclass(frozen=True)
class Came:
    """A device in the order of arrival.

    Attributes:
        content: what its slot holds, as whoever has the key finds.
        report_id: of the slot.
        value, in_clear: the record that becomes of it, and what that would be if nothing were sealed.
    """

    content: bytes
    report_id: bytes
    value: bytes
    in_clear: bytes


def visited(folder: Path, source: random.Random) -> Iterator[bytes]:
    """Of p2b: with a click, without one, and with nothing shown."""
    agreement = VisitAgreement.read((folder / "agreement.json").read_bytes())
    while True:
        device = Device.begun(agreement, source.randbytes)
        item = device.decide("visit", {"country": source.choice(["de", "fr"])}, NOW_MS).arm
        heard = source.randrange(3)
        if heard:
            device.shown("visit", item, NOW_MS)
        if heard == 2:
            device.reward("visit", item, 1.0, NOW_MS)
        (slot,) = device.outgoing(NOW_MS + 10_000_000)
        yield slot.body


def rated(folder: Path, source: random.Random) -> Iterator[bytes]:
    """Of bgt: with no ratings, one, or as many as a slot holds."""
    agreement = RatingAgreement.read((folder / "agreement.json").read_bytes())
    while True:
        device = RatingDevice.begun(agreement, source.randbytes)
        items = source.sample(range(24), source.choice([0, 1, 8]))
        device.rate(items, [source.choice([1.0, 3.0, 5.0]) for _ in items])
        device.outgoing(NOW_MS)
        (slot,) = device.outgoing(NOW_MS + 10_000_000)
        yield slot.body


# A minute for the devices of bgt, whose slots of each round are attacked below as well.
SYSTEMS = [(VISITS, visited), pytest.param((RATINGS, rated), marks=pytest.mark.sweep)]


@pytest.fixture(scope="module", params=SYSTEMS, ids=["p2b", "bgt"])
def came(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Came]:
    """Devices of which it is drawn what they hold; all slots of a system have one size."""
    values, sent = request.param
    folder: Path = tmp_path_factory.mktemp("devices") / "deployment"
    system = prepare(folder, parse_config(values), keys=KEYS)
    assert system.device_service is not None
    service, opener, found = system.device_service(), ContentOpener(KEYS.key("sealing")), []
    for body in islice(sent(folder, random.Random(20)), BATCHES * EACH):
        fields = dict(read_slot(body, service.body_bytes))
        content = opener.open(fields["sealed"], SlotPlace(*(fields[name] for name in SlotPlace._fields)))
        name, record = service.record(fields)
        clear = codec.encode(name, {**record, "sealed": content})
        found.append(Came(content, fields["report_id"], codec.encode(name, record), clear))
    return found


def relayed(came: list[Came], in_clear: bool = False) -> list[list[tuple[int, bytes]]]:
    """What the relay appends of each batch, in order: partition, and value."""
    batches: list[list[tuple[int, bytes]]] = []

    async def play() -> None:
        for batch in range(BATCHES):
            seen: list[tuple[int, bytes]] = []

            async def append(partition: int, value: bytes, seen: Any = seen) -> None:
                seen.append((partition, value))

            relay = relaying.SlotRelay(append, PARTITIONS, 0.001, most=EACH)
            sent = [
                relay.send(one.report_id, one.in_clear if in_clear else one.value)
                for one in came[batch * EACH : (batch + 1) * EACH]
            ]
            await asyncio.gather(*sent)
            batches.append(seen)

    asyncio.run(play())
    return batches


def tried(came: list[Came], attacker: Any, in_clear: bool = False) -> Any:
    number_of = {one.report_id: number for number, one in enumerate(came)}
    slots: dict[int, Any] = {}
    for batch, seen in enumerate(relayed(came, in_clear)):
        at_ms = NOW_MS + 1_000 * (batch + 1)
        for offset, (partition, value) in enumerate(seen):
            slots[number_of[value[10:26]]] = attacker.SlotView(
                partition, batch * EACH + offset, at_ms, at_ms, len(value), None, (), 1, "gateway", value
            )
    edges = [
        attacker.EdgeView(f"address-{number:04}", NOW_MS + 10 * number, NOW_MS + 10 * number, one.content)
        for number, one in enumerate(came)
    ]
    pairs = attacker.pairs_of([number // EACH for number in range(len(came))], seed=21)
    verdict = attacker.attack(edges, [slots[number] for number in range(len(came))], pairs, PARTITIONS, seed=22)
    assert verdict.pairs >= 500
    return verdict


def test_who_sees_the_traffic_and_the_topics_is_at_chance_within_a_batch(came, attacker):
    assert len({one.content for one in came}) > 5
    verdict = tried(came, attacker)
    low, high = verdict.interval(1 - FALSE_ALARM)
    assert low <= 0.5 <= high, verdict


def test_in_the_order_of_arrival_an_attacker_tells_them_apart(came, attacker, monkeypatch):
    monkeypatch.setattr(relaying, "sorted", list, raising=False)
    assert tried(came, attacker).chance() < FALSE_ALARM


def test_where_slots_are_not_sealed_an_attacker_tells_them_apart_by_what_they_hold(came, attacker):
    assert tried(came, attacker, in_clear=True).chance() < FALSE_ALARM


def test_all_slots_have_one_size_whatever_they_hold(came):
    assert len({len(one.value) for one in came}) == 1
    assert len({len(one.in_clear) for one in came}) == 1


# One who sees whose ratings came when, and in which order the slots of a round left: at chance, whatever they go by.

USERS = 300


@pytest.fixture(scope="module")
def known(films: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Place of each user's slot in the round, and what the attacker knows of each user."""
    draw = np.random.default_rng(11)
    config = replace(films.make_config(), items=USERS)
    rig = films.RaterRig(BgtSystem.of(config, np.zeros((USERS, 0))), films.SECRET)
    names = [f"user-{number:03}" for number in draw.permutation(USERS)]
    ratings = draw.integers(1, 9, USERS)
    values = draw.choice([1.0, 2.0, 3.0, 4.0, 5.0], USERS)
    for place, name in enumerate(names):
        items = (np.arange(ratings[place]) + place) % USERS
        rig.rate(name, sorted(items.tolist()), [values[place]] * len(items))
    erased = np.arange(USERS) % 2 == 0
    draw.shuffle(erased)
    for name, gone in zip(names, erased, strict=True):
        if gone:
            rig.forget(name)
    rig.end(0)
    left = [slot["slot_id"] for slot in rig.slots(rig.fold())]
    key = rig.machine.key
    ids = [key.derive("bgt-agent", key.digest("bgt-user", name.encode())).prf("bgt-slot", 0)[:16] for name in names]
    assert sorted(ids) == sorted(left)
    knows = {
        "order of joining": np.arange(USERS),
        "name": np.argsort(np.argsort(names)),
        "number of ratings": ratings,
        "rating": values,
        "erased or not": erased.astype(int),
    }
    return np.array([left.index(one) for one in ids]), knows


@pytest.mark.parametrize("by", ["order of joining", "name", "number of ratings", "rating", "erased or not"])
def test_no_order_that_an_onlooker_knows_is_the_order_of_the_slots(known, by):
    places, knows = known
    pairs = np.random.default_rng(12).permutation(USERS).reshape(-1, 2)
    told = knows[by][pairs]
    pairs = pairs[told[:, 0] != told[:, 1]]
    same = (knows[by][pairs[:, 0]] < knows[by][pairs[:, 1]]) == (places[pairs[:, 0]] < places[pairs[:, 1]])
    assert len(pairs) > 60
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(pairs), 0.5)
    assert low <= same.sum() <= high


def test_the_sizes_have_power():
    for pairs, right, power in ((60, 0.9, 0.98), (150, 0.75, 0.9)):
        low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], pairs, 0.5)
        assert 1 - stats.binom.cdf(high, pairs, right) >= power
        assert low > 0
