"""Small recorded deployments of every registered system: the logs of all topics after a seeded closed loop.

A recording is a function of the seeds alone. It runs the machines of all roles on the direct runner, with clients that
behave and records that nobody should have sent. Log time goes on by `STEP_MS` an append, so all records of a recording
have one order. Tests drive each role's machine over these logs again, record by record (`machine_drive`).

`VARIANTS` has the ways in which each system can be deployed that give its roles other states. A registered system
without one is an error (`require_all`): nobody is left out by not being named.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import hpke
import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.client import Item
from hushstream.client.client import Client
from hushstream.engine.catalogue import Cap
from hushstream.engine.declare.declaration import System, conversation_of, request_partitions
from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.declare.role import Role
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.sealing import SlotPlace, place_of, read_slot
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.features.schema import declare
from hushstream.gateway.devices.server import SignedModels
from hushstream.privacy.keys import Key
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.studies.bgt.play import RatingLoop
from hushstream.replay.studies.bgt.worlds import tastes
from hushstream.replay.studies.pdap.play import PdapLoop, PdapOptions, PdapPlan, Visits, configured
from hushstream.replay.studies.pdap.worlds import vendors
from hushstream.replay.studies.pdol.play import RecordLoop
from hushstream.replay.studies.pdol.worlds import sparse_synthetic
from hushstream.schemas import codec
from hushstream.schemas.topics import common_name
from hushstream.systems.bgt import artefacts as ratings
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.edge.device import Agreement as RatingAgreement
from hushstream.systems.bgt.records import packed_slots
from hushstream.systems.bgt.system import RatingDeviceService
from hushstream.systems.colin.deployment import inputs_of
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.p2b.edge.device import Agreement, Device
from hushstream.systems.p2b.models import ExportedModel
from hushstream.systems.p2b.prepared import agreement_of
from hushstream.systems.p2b.slots import SLOT_RECORD
from hushstream.systems.pdap.configuration import PdapConfig, Schedule
from offered import MEANARM, RRARM, offered

KEYS = KeySource(seed=7)
START_MS, STEP_MS = 1_700_000_000_000, 100
NONCE = bytes(range(32))
TIMEOUT_SECONDS = 600.0
"""For answers that come at once on the direct runner."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A deployment, and every topic of it at the end of its loop.

    Attributes:
        name, system: the deployment.
        records: of every topic and partition.
        written: the values of those records that the roles wrote, beginnings of journals among them.
    """

    name: str
    system: System
    records: Mapping[TopicPartition, list[InputRecord]]
    written: Set[bytes]

    def homes(self) -> Iterator[tuple[Role, int]]:
        """Every home partition of every role."""
        return ((role, home) for role in self.system.roles for home in range(self.system.homes(role)))


class Loop:
    """A log, the machines over it, and shorthand for what is appended."""

    def __init__(self, system: System) -> None:
        ticks = count(START_MS, STEP_MS)
        self.system = system
        self.log = MemoryLog(lambda: next(ticks))
        self.driver = DirectDriver(self.log, all_machines(system, KEYS), NONCE)

    def recording(self, name: str) -> Recording:
        """What there is now."""
        steps, there = self.driver.steps, dict(self.log.partitions())
        journals = {role.journal for role in self.system.roles}
        begun = {records[0].value for (topic, _), records in there.items() if topic in journals}
        written = {step.journal for step in steps if step.journal is not None}
        sent = {output.value for step in steps for output in (*step.releases, *step.dead_letters)}
        return Recording(name, self.system, there, begun | written | sent)

    def put(self, topic: str, schema: str, /, partition: int = 0, **fields: Any) -> None:
        """Append a record, and let all machines fold it."""
        self.log.append(topic, partition, codec.encode(schema, fields))
        self.driver.pump()

    def junk(self, *topics: str) -> None:
        """Append bytes that are no record."""
        for topic in topics:
            self.log.append(topic, 0, b"no record")

    def forget(self, topic: str, user: str) -> None:
        """Append a user's deletion request."""
        self.put(topic, "Forget", user=user, config_digest=self.system.digest)

    def log_of(self, party: str = "") -> DirectEventLog:
        """The log of one client."""
        answers = conversation_of(self.system, party).answers
        return DirectEventLog(self.log, self.driver, request_partitions(self.system), answers)


@dataclass(slots=True)
class _Visitors:
    """Users who ask, see and click in turn, and one who sends what nobody should."""

    loop: Loop
    context: Callable[[random.Random], Any]
    arms: int
    tracks: tuple[tuple[str, ...], ...]
    """Of the users of each phase; the last phase is not ended, so that windows stay open."""
    users: int
    rounds: int
    rewards: tuple[float, ...] = (0.0, 1.0)
    again: bool = False
    """Whether the same users come in every phase."""
    named: bool = False
    """Whether items have names; then one of them gives its row to another."""
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    async def play(self) -> None:
        # A client that knows the rules sends nothing that they refuse, so only those who must encode by them do.
        async with Client(self.loop.log_of(), rules=self._declared) as client:
            for phase, tracks in enumerate(self.tracks):
                names = [f"user-{0 if self.again else phase}-{number}" for number in range(self.users)]
                turns = [(name, turn) for turn in range(self.rounds) for name in names]
                if self.named:
                    await self._change_items(client, phase)
                for name, turn in turns:
                    track = tracks[int(name.rpartition("-")[2]) % len(tracks)]
                    await self._visit(client, f"{name}:{phase}:{turn}", name, track)
                if phase == 1:
                    self.loop.forget("contexts", names[0])
                if phase < len(self.tracks) - 1:
                    await client.end_phase(phase)

    @property
    def _declared(self) -> ContextRules | None:
        rules = self.loop.system.requests
        by_name = rules is not None and (rules.features is not None or rules.catalogue is not None)
        return rules if by_name else None

    async def _visit(self, client: Client, event_id: str, user: str, track: str) -> None:
        items: Sequence[Any] = range(self.arms)
        if self.named:
            items = [one.item for one in client.items.known() if one.offered]
        eligible = None if self.draw.random() < 0.8 else sorted(self.draw.sample(items, 2))
        context = self.context(self.draw)
        if self.named and not isinstance(context, Mapping):
            context = dict(zip(items, np.reshape(context, (self.arms, -1)), strict=False))
        decision = await client.decide(event_id, user, context, eligible, timeout=TIMEOUT_SECONDS, track=track)
        way, shown = self.draw.random(), decision.item or decision.arm
        if way < 0.8:
            await client.shown(event_id, user, shown if way > 0.1 else items[(items.index(shown) + 1) % len(items)])
        if way > 0.3:
            await client.reward(event_id, user, shown, self.draw.choice(self.rewards))
        if way > 0.5 and self._declared is not None and self._declared.harm is not None:
            await client.harm(event_id, user, 2 * way - 1)
        if way < 0.1:
            self._misbehave(event_id, user, context)

    async def _change_items(self, client: Client, phase: int) -> None:
        """Fill the catalogue, retire an item, and give its row to another one; with records that do not count.

        Where items may have rules, two have caps, and the last one is pinned.
        """
        e = {"item": "e", "offered": True, "title": "", "features": ""}
        change = {"items": [e], "config_digest": self.loop.system.digest}
        rules = self._declared.catalogue if self._declared else None
        version = 0 if rules is None else rules.version_after(0)
        cap = Cap(1, 3) if rules is not None and rules.ruled else None
        if phase == 0:
            await client.items.add_all(Item(name, name.upper(), cap=cap if name == "a" else None) for name in "abc")
        elif phase == 1:
            await client.items.retire("b")
            self.loop.put("items", "ItemChanges", **{**change, "version": version + 2})
            self.loop.put("items", "ItemChanges", **{**change, "version": version + 3})
            self.loop.put("items", "ItemChanges", **{**change, "version": version + 3, "config_digest": bytes(16)})
            self.loop.junk("items")
        else:
            await client.items.add_all([Item("d", pinned=cap is not None, cap=cap)])

    def _misbehave(self, event_id: str, user: str, context: Any) -> None:
        put = self.loop.put
        if self._declared is None or self._declared.features is None:
            situation = np.asarray(list(context.values()) if self.named else context, "<f4").tobytes()
            put("contexts", "Context", event_id=event_id, user=user, context=situation)
            put("contexts", "Context", event_id=f"{event_id}x", user=user, context=situation[:-4])
        else:
            schema = self._declared.features
            row, others = self._declared.row_of(context), {"user": user, "features_digest": schema.digest}
            put("contexts", "FeatureContext", event_id=event_id, row=row, **others)
            put("contexts", "FeatureContext", event_id=f"{event_id}x", row=row[:-1], **others)
            put("contexts", "FeatureContext", event_id=f"{event_id}w", row=b"\xfe" * len(row), **others)
            put("contexts", "FeatureContext", event_id=f"{event_id}v", row=row, user=user, features_digest=bytes(16))
        early = {"kind": "reward", "event_id": f"{event_id}y", "user": user, "arm": 0, "reward": 1.0}
        put("clicks", "Feedback", **early)
        put("clicks", "Feedback", **{**early, "kind": "shown", "event_id": f"{event_id}z"})
        put("clicks", "Feedback", **{**early, "event_id": event_id, "user": "a stranger"})


def _histogram(dimension: int) -> Callable[[random.Random], Any]:
    """Tenths that sum to 1."""

    def draw(source: random.Random) -> Any:
        parts = [source.randrange(dimension) for _ in range(10)]
        return (np.bincount(parts, minlength=dimension) / 10).astype("<f4")

    return draw


FEATURES = {
    "country": {"kind": "category", "vocabulary": ["de", "fr", "se"]},
    "age": {"kind": "number", "range": [16, 96], "nodes": 4},
    "likes": {"kind": "tags", "vocabulary": ["books", "games", "toys"], "most": 2},
    "taste": {"kind": "embedding", "dimension": 3},
    "member": {"kind": "boolean"},
    "both": {"kind": "cross", "of": ["country", "member"]},
}


def _declared() -> Callable[[random.Random], Any]:
    """Values of `FEATURES`, some of them unknown, out of range or missing."""

    def draw(source: random.Random) -> Any:
        return {
            "country": source.choice(["de", "fr", "it", None]),
            "age": source.choice([17, 40.5, 120, None]),
            "likes": source.choice([[], ["books"], ["books", "toys", "games"]]),
            "taste": source.choice([[0.5, -0.5, 0.25], None]),
            "member": source.choice([True, False]),
        }

    return draw


def _features(arms: int, dimension: int) -> Callable[[random.Random], Any]:
    """Quarters of a length of 1 at most, for each arm."""
    return lambda source: np.array([source.choice((-0.25, 0.0, 0.25)) for _ in range(arms * dimension)], dtype="<f4")


class Variant(NamedTuple):
    """A way to deploy a system, and how its loop is recorded, in a folder: begun when it is given, then played."""

    kind: str
    name: str
    record: Callable[[Path], Iterator[Loop]]
    package: Path | None = None
    """Where the system is offered, if it is not registered in this process."""

    @contextmanager
    def registered(self) -> Iterator[None]:
        """While its system is registered."""
        if self.package is None:
            yield
            return
        with offered(self.package, self.kind):
            yield


def _started_from(items: Sequence[str]) -> ExportedModel:
    """A model of `FEATURES`."""
    paid = {"epsilon_micro": 1_000_000, "delta_units": "0"}
    about = {
        "deployment": "before",
        "private_as_stated": True,
        "version": 3,
        "slots": 12.0,
        "paid": {"which": paid, "zero_out": paid},
        "reward_variance": 0.2,
    }
    schema = declare(FEATURES)
    means, spread = np.random.default_rng(3).uniform(0.0, 0.5, (2, len(items), schema.cells + 1))
    return ExportedModel(about, tuple(items), (), schema, means, 0.01 + spread)


def _p2b(name: str, start: ExportedModel | None = None, **changes: Any) -> Variant:
    inputs = {} if start is None else {"start": ("start.json", start.as_json().decode())}

    def record(folder: Path) -> Iterator[Loop]:
        values = {
            "system": "p2b",
            "deployment": name,
            "items": {"capacity": 3},
            "features": {"dimension": 4},
            "expected_slots": 40,
            "slot": {"after_interactions": 2, "period_seconds": 30.0},
            "privacy": {"units_per_person": 2},
            "feedback": {
                "settle_seconds": 3.0,
                "attribution_window_seconds": 4.0,
                "early_feedback": 4,
                "remembered_events": 30,
            },
            "users": {"contexts_per_period": 5, "period_seconds": 60.0, "expire_after_seconds": 11.0},
        }
        for key, value in changes.items():
            values[key] = value if key == "features" else {**values.get(key, {}), **value}
        loop = Loop(prepare(folder, parse_config(values), inputs, KEYS, public_dataset="synthetic"))
        yield loop
        coded = "declared" not in name
        loop.junk("contexts", "clicks", "reports", "window-sums")
        tracks = (("cold", "private"), ("private", "cold"), ("private",))
        context, named = _histogram(4) if coded else _declared(), "named" in name
        asyncio.run(_Visitors(loop, context, 3, tracks, users=5, rounds=3, named=named).play())

    return Variant("p2b", name, record)


def _p2b_in_parts(name: str) -> Variant:
    """So many items that sums and models are larger than a record: they leave in parts."""

    def record(folder: Path) -> Iterator[Loop]:
        values = {
            "system": "p2b",
            "deployment": name,
            "items": {"capacity": 16_400, "named": True, "expected": 3},
            "features": {"vip": {"kind": "boolean"}},
            "expected_slots": 40,
            "slot": {"after_interactions": 2, "period_seconds": 3.0},
            "feedback": {"settle_seconds": 1.0, "attribution_window_seconds": 4.0, "click_rate": 0.2},
            "release": {"form": "features", "window_units": 4, "sums": "fresh"},
        }
        loop = Loop(prepare(folder, parse_config(values), keys=KEYS))
        yield loop
        loop.junk("window-sums", "model-parts")
        loop.put("window-sums", "ReleasePart", **part_of(loop, bytes(16), part=0))
        loop.put("window-sums", "ReleasePart", **part_of(loop, bytes(16), part=1))
        loop.put("window-sums", "ReleasePart", **part_of(loop, bytes(16), part=2))
        loop.put("model-parts", "ReleasePart", **part_of(loop, bytes(16), part=1))
        loop.put("window-sums", "ReleasePart", **part_of(loop, b"left behind".ljust(16), part=0))
        tracks = (("private",), ("private", "cold"), ("private",))
        context = lambda source: {"vip": source.random() < 0.5}  # noqa: E731 - one line says it
        asyncio.run(_Visitors(loop, context, 16_400, tracks, users=4, rounds=2, named=True).play())

    return Variant("p2b", name, record)


def _p2b_devices(name: str) -> Variant:
    """Learners are agents on devices: their sealed slots come through a gateway, and models are signed for them."""

    def record(folder: Path) -> Iterator[Loop]:
        values = {
            "system": "p2b",
            "deployment": name,
            "kind": "edge",
            "items": {"capacity": 3},
            "features": FEATURES,
            "expected_slots": 40,
            "slot": {"after_interactions": 2, "period_seconds": 30.0},
            "feedback": {"attribution_window_seconds": 4.0, "settle_seconds": 1.0, "click_rate": 0.2},
            "release": {"form": "features", "window_units": 4, "sums": "fresh"},
        }
        loop = Loop(prepare(folder, parse_config(values), keys=KEYS))
        yield loop
        loop.junk("reports", "window-sums")
        source, context = random.Random(1), _declared()
        agreement = Agreement.read(agreement_of(loop.system.core))
        for number in range(10):
            device, now_ms = Device.begun(agreement, source.randbytes), START_MS - 60_000
            for turn in range(2):
                item = device.decide(str(turn), context(source), now_ms).arm
                device.shown(str(turn), item, now_ms)
                if source.random() < 0.5:
                    device.reward(str(turn), item, 1.0, now_ms)
            (slot,) = device.outgoing(START_MS)
            fields = _sealed_again(device, dict(read_slot(slot.body, agreement.body_bytes)), source)
            loop.put("reports", SLOT_RECORD, **fields)
            if number % 3 == 0:
                loop.put("reports", SLOT_RECORD, **fields)
                loop.put("reports", SLOT_RECORD, **{**fields, "report_id": source.randbytes(16)})

    return Variant("p2b", name, record)


def _sealed_again(device: Device, fields: dict[str, Any], source: random.Random) -> dict[str, Any]:
    """A slot sealed under a key that follows from the seed: a device draws one."""
    place = SlotPlace(*(fields[name] for name in SlotPlace._fields))
    recipient = device.agreement.sealing.at(0)
    info = b"hushstream slot 1" + b"".join(place)
    return {**fields, "sealed": hpke.sealed(device._owed[0].content, recipient, info, source.randbytes(32))}


def part_of(loop: Loop, whole: bytes, part: int) -> dict[str, Any]:
    """Fields of a part, of a set of two that never joins to what names it."""
    named = {"config_digest": loop.system.digest, "whole": whole, "parts": 2}
    return {**named, "part": part, "content": b"nobody's"}


_NOISY_REWARDS = {"noise_at": "learner", "mechanism": "noisy-reward"}


def _colin(name: str, learner: Mapping[str, Any], named: bool = False, **release: Any) -> Variant:
    def record(folder: Path) -> Iterator[Loop]:
        values = {
            "system": "colin",
            "deployment": name,
            "items": {"capacity": 3, **({"named": True} if named else {})},
            "features": {"dimension": 2},
            "feedback": {
                "settle_seconds": 3.0,
                "attribution_window_seconds": 3.0,
                "early_feedback": 4,
                "remembered_events": 30,
            },
            "learner": {"alpha": 0.1, **learner},
            "release": {"mechanism": "negative-digit", "horizon": 16, "window_units": 5, **release},
            "privacy": {"units_per_person": 7, "epochs": 3},
        }
        users = [f"user-0-{number}" for number in range(5)]
        graph = SocialGraph.of_edges([(one, other, 1.0) for one, other in pairwise(users)], users)
        loop = Loop(prepare(folder, parse_config(values), inputs_of(graph)))
        yield loop
        own = {"server": ("rewards",)}.get(release.get("noise_at", "server"), ())
        loop.junk("contexts", "clicks", "releases", *own)
        tracks = (("private",),) * 3
        context, rewards = _features(3, 2), (0.0, 0.4, 1.0)
        visitors = _Visitors(loop, context, 3, tracks, users=5, rounds=3, rewards=rewards, again=True, named=named)
        asyncio.run(visitors.play())

    return Variant("colin", name, record)


def _pdap(name: str, named: bool = False, trial: bool = False, **release: Any) -> Variant:
    def record(folder: Path) -> Iterator[Loop]:
        contexts, seed = 62, 5
        world = vendors(vendors=2, arms=6, seed=seed)
        settings = {
            "deployment": name,
            "release": {"window_units": 12, "window_ratio": 1.2, **release},
            "privacy": {"epsilon": 4.0, "lifetime": {"epsilon": 20.0, "delta": 1e-06}},
            "cells": {"split_at": 12.0},
            "feedback": {"early_feedback": 4, "remembered_events": 30},
        }
        values = configured(PdapOptions(contexts=contexts, config=settings), world)
        for vendor in values["vendors"]:
            vendor["items"] |= {"named": True} if named else {}
            vendor |= {"declared_rate": 0.01} if trial else {}
        values |= {"learner": {"clean_share": 0.4}} if trial else {}
        config = parse_config(values)
        loop = Loop(prepare(folder, config))
        yield loop
        first = config.vendors[0].name
        outcomes = ("outcomes",) if release.get("placement") == "serving" else (f"outcomes.{first}",)
        loop.junk(f"contexts.{first}", f"clicks.{first}", *outcomes, "releases")
        early = {"kind": "reward", "event_id": "none", "user": "nobody", "arm": 0, "reward": 1.0}
        loop.put(f"clicks.{first}", "Feedback", **early)
        loop.put(f"clicks.{first}", "Feedback", **{**early, "kind": "shown"})
        if named:
            asyncio.run(_fill_catalogues(loop, config))
        plan = PdapPlan(contexts, Schedule(6, 1.3))
        asyncio.run(PdapLoop(config, world, Visits.of(world, contexts, seed), plan).run(loop.log_of))
        if named:
            asyncio.run(_change_catalogue(loop, first))
        loop.forget(f"contexts.{first}", "user-1")

    return Variant("pdap", name, record)


async def _fill_catalogues(loop: Loop, config: PdapConfig) -> None:
    """Every vendor offers items, and keeps a row free."""
    for vendor in config.vendors:
        async with Client(loop.log_of(vendor.name), rules=loop.system.requests, party=vendor.name) as client:
            await client.items.add_all([Item(f"i{number}") for number in range(vendor.arms - 1)])


async def _change_catalogue(loop: Loop, vendor: str) -> None:
    """An item goes, one comes, and records come that do not count; with decisions before and after."""
    topic = f"items.{vendor}"
    async with Client(loop.log_of(vendor), rules=loop.system.requests, party=vendor) as client:
        await client.items.retire("i1")
        await client.decide("late:1", "user-1", [0.2, 0.4], timeout=TIMEOUT_SECONDS)
        version = await client.items.add("late", "come late")
        gone = {"item": "i2", "offered": False, "title": "", "features": ""}
        change = {"items": [gone], "config_digest": loop.system.digest}
        loop.put(topic, "ItemChanges", **{**change, "version": version})
        loop.put(topic, "ItemChanges", **{**change, "version": version + 1, "config_digest": bytes(16)})
        loop.junk(topic)
        for number in range(2, 8):
            event, user = f"late:{number}", f"user-{number}"
            decision = await client.decide(event, user, [0.2, 0.1 * number], timeout=TIMEOUT_SECONDS)
            assert decision.item is not None
            await client.shown(event, user, decision.item)
            await client.reward(event, user, decision.item, 1.0)
        only = [f"{vendor}/late", f"{vendor}/i0"]
        await client.decide("late:9", "user-1", [0.2, 0.4], only, timeout=TIMEOUT_SECONDS)
        await client.end_phase(99)


def _pdol(name: str, dimension: int = 8, **changes: Any) -> Variant:
    def record(folder: Path) -> Iterator[Loop]:
        nodes = 3
        stream = sparse_synthetic(records=72, dimension=dimension, features=3, nodes=nodes, seed=3)
        values = {
            "system": "pdol",
            "deployment": name,
            "nodes": nodes,
            "features": {"dimension": stream.dimension},
            "feedback": {"label_slots": 2, "remembered_events": 20},
            "privacy": {"epsilon": 4.0, "epochs": 3},
            "release": {"window_units": 4, "horizon": 4},
        }
        for key, value in changes.items():
            values[key] = {**values.get(key, {}), **value}
        loop = Loop(prepare(folder, parse_config(values)))
        yield loop
        loop.junk("records", "releases")
        loop.put("records", "Label", event_id="none", user="x", label=1)
        asyncio.run(RecordLoop(stream, loop.system.core, 12).run(loop.log_of()))
        loop.forget("records", "person-1")
        for present in (False, True, False):
            loop.put("records", "Membership", node=0, present=present, config_digest=bytes(16))

    return Variant("pdol", name, record)


def _bgt(name: str, **release: Any) -> Variant:
    def record(folder: Path) -> Iterator[Loop]:
        world = tastes(users=16, items=30, ratings=6, seed=3)
        values = {
            "system": "bgt",
            "deployment": name,
            "items": {"capacity": 30},
            "features": {"dimension": 0},
            "scale": {"lowest": 0.0, "highest": 1.0},
            "privacy": {"epsilon": 20.0, "epochs": 3},
            "release": {"pairs": 6, "top": 6, "factors": 2, **release},
        }
        config = parse_config(values)
        loop = Loop(prepare(folder, config))
        yield loop
        loop.junk("ratings", "updates", "releases", "rounds")
        asyncio.run(RatingLoop(world.split(3), config).run(loop.log_of()))
        loop.forget("ratings", "user-1")

    return Variant("bgt", name, record)


def _bgt_devices(name: str) -> Variant:
    """Slots are made on devices and sealed; models are signed for them, and rounds end where all have answered."""

    def record(folder: Path) -> Iterator[Loop]:
        values = {
            "system": "bgt",
            "deployment": name,
            "kind": "edge",
            "items": {"capacity": 12},
            "scale": {"lowest": 0.0, "highest": 1.0},
            "privacy": {"epsilon": 20.0, "epochs": 3},
            "release": {"pairs": 6, "top": 6, "factors": 2},
        }
        loop = Loop(prepare(folder, parse_config(values), keys=KEYS))
        yield loop
        loop.junk("updates", "releases")
        source, agreement = random.Random(1), RatingAgreement.read(ratings.agreement_of(loop.system.core))
        service = RatingDeviceService(loop.system.core, ratings.agreement_of(loop.system.core))
        for number in range(3):
            assert service.asked is not None
            for person in range(8):
                agent = RatingAgent(
                    agreement.config, Key(bytes([person]) * 32), lambda _: None, number, None, agreement.configuration
                )
                agent.rate(source.sample(range(12), 5), [source.choice([0.0, 0.5, 1.0]) for _ in range(5)])
                sent = agent.answer(service.asked, agreement.configuration)
                place = place_of(sent.slot_id, number, agreement.configuration)
                info = b"hushstream slot 1" + b"".join(place)
                content, recipient = packed_slots(sent.slot)[0], agreement.sealing.at(number)
                slot = {"slot_id": sent.slot_id, "config_digest": agreement.configuration, "round": number}
                slot["sealed"] = hpke.sealed(content, recipient, info, source.randbytes(32))
                if number and not person:
                    opening = service.opening or b""
                    loop.put("updates", STATEMENT_RECORD, **{**codec.decode(opening)[1], "signature": bytes(64)})
                    loop.log.append("updates", 0, opening)
                loop.put("updates", "SealedRatingSlot", **slot)
                if person % 3 == 0:
                    loop.put("updates", "SealedRatingSlot", **slot)
                    loop.put("updates", "SealedRatingSlot", **{**slot, "slot_id": source.randbytes(16)})
            if number < 2:
                end = {"phase": number, "origin": 0, "config_digest": agreement.configuration, "after_click": -1}
                loop.put("updates", "Seal", **end)
                for stated in loop.log.slice("statements", 0, 0).records:
                    SignedModels(service).read(stated)

    return Variant("bgt", name, record)


def _meanarm() -> Variant:
    def record(folder: Path) -> Iterator[Loop]:
        values = {
            "system": "meanarm", "deployment": "meanarm", "arms": 3, "release": {"window_units": 4},
            "privacy": {"epsilon": 2.0, "units_per_person": 3},
        }  # fmt: skip
        loop = Loop(prepare(folder, parse_config(values)))
        yield loop
        loop.junk("asks", "slots", "sums")
        for number in range(30):
            event = {"event_id": f"e{number}", "user": f"user-{number % 6}", "config_digest": loop.system.digest}
            loop.put("asks", "ArmAsk", **event)
            if number % 5:
                loop.put("asks", "ArmClick", reward=number % 2, **event)
            if number == 16:
                loop.forget("asks", "user-3")
        loop.put("asks", "ArmClick", reward=1, **event)

    return Variant("meanarm", "meanarm", record, MEANARM)


def _rrarm() -> Variant:
    def record(folder: Path) -> Iterator[Loop]:
        values = {
            "system": "rrarm",
            "deployment": "rrarm",
            "arms": 3,
            "privacy": {"epsilon": 2.0, "units_per_person": 4},
        }
        loop = Loop(prepare(folder, parse_config(values)))
        yield loop
        loop.junk("asks")
        for number in range(30):
            event = {"event_id": f"e{number}", "user": f"user-{number % 6}", "config_digest": loop.system.digest}
            loop.put("asks", "RrAsk", **event)
            if number % 5:
                loop.put("asks", "RrClick", reward=number % 2, **event)
            if number == 16:
                loop.forget("asks", "user-3")
        loop.put("asks", "RrClick", reward=1, **event)

    return Variant("rrarm", "rrarm", record, RRARM)


VARIANTS = (
    _p2b("p2b-windows", release={"window_units": 5, "window_seconds": 6.0, "sums": "fresh"}),
    _p2b(
        "p2b-counter",
        encoder={"codes": 4},
        release={"window_units": 5, "sums": "counter", "horizon": 16},
        measurement={"own": 0.2, "baseline": 0.2, "every_seconds": 8.0, "decisions_per_user": 3, "releases": 8},
    ),
    _p2b("p2b-tuples", release={"mechanism": "tuples", "sampling": 0.5, "threshold": 1, "window_units": 6}),
    _p2b(
        "p2b-declared",
        features=FEATURES,
        release={"form": "features", "window_units": 5, "window_seconds": 6.0, "sums": "fresh"},
        items={"expected": 2},
        feedback={"click_rate": 0.2, "reward_levels": 2},
        measurement={"of": "answers", "every_seconds": 8.0, "decisions_per_user": 3, "releases": 8},
    ),
    _p2b(
        "p2b-declared-counter",
        features=FEATURES,
        release={"form": "features", "window_units": 5, "sums": "counter", "horizon": 16, "sampling": 0.7},
        measurement={
            "own": 0.2,
            "baseline": 0.2,
            "every_seconds": 8.0,
            "decisions_per_user": 3,
            "releases": 8,
            "guardrail": "complained",
            "guardrail_wait_seconds": 6.0,
        },
    ),
    # A new item takes the row that is kept for "z", which never comes.
    _p2b(
        "p2b-declared-named",
        _started_from(("a", "c", "z")),
        features=FEATURES,
        items={"named": True},
        release={"form": "features", "window_units": 5, "sums": "fresh"},
        slot={"period_seconds": 3.0},
        feedback={"settle_seconds": 1.0, "click_rate": 0.2},
        measurement={"own": 0.2, "baseline": 0.2, "every_seconds": 8.0, "decisions_per_user": 3, "releases": 8},
    ),
    _p2b(
        "p2b-declared-named-fading",
        _started_from(("a", "z")),
        features=FEATURES,
        items={"named": True},
        release={"form": "features", "window_units": 5, "sums": "counter", "horizon": 16},
        slot={"period_seconds": 3.0},
        feedback={"settle_seconds": 1.0, "click_rate": 0.2},
        privacy={"renew_every_seconds": 4.0},
        model={"half_life": 2},
    ),
    _p2b(
        "p2b-declared-renewed",
        features=FEATURES,
        release={"form": "features", "window_units": 1, "sums": "fresh"},
        slot={"period_seconds": 3.0},
        feedback={"settle_seconds": 1.0, "click_rate": 0.2},
        privacy={"renew_every_seconds": 4.0},
    ),
    _p2b_devices("p2b-declared-devices"),
    _p2b_in_parts("p2b-declared-named-in-parts"),
    _colin("colin-counter", {"algorithm": "colin"}, window_seconds=6.0),
    _colin("colin-learner", {"algorithm": "goblin"}, noise_at="learner"),
    _colin("colin-noisy-reward", {"algorithm": "linucb", "clean_share": 0.4}, **_NOISY_REWARDS),
    _colin("colin-named", {"algorithm": "colin"}, named=True, window_seconds=6.0),
    _colin("colin-named-learner", {"algorithm": "goblin", "clean_share": 0.4}, named=True, **_NOISY_REWARDS),
    _pdap("pdap-serving", placement="serving"),
    _pdap("pdap-home", trial=True, placement="home"),
    _pdap("pdap-named", named=True, trial=True, placement="serving"),
    _pdap("pdap-named-home", named=True, placement="home"),
    _pdol("pdol-released", dimension=130, prediction={"place": "released"}),
    _pdol("pdol-node", release={"mechanism": "negative-digit"}),
    _bgt("bgt-gaussian"),
    _bgt_devices("bgt-devices"),
    _meanarm(),
    _rrarm(),
)

SWEPT = frozenset({"p2b-declared", "p2b-declared-renewed", "pdap-home", "pdap-named"})
"""What each of them shows, others show together: `make test-all` drives them too."""


def marks_of(variant: Variant) -> list[pytest.MarkDecorator]:
    """Marks of the cases of a variant."""
    return [pytest.mark.sweep] if variant.name in SWEPT else []


def every_home() -> tuple[Any, ...]:
    """(variant, place among its homes) of each role's home, as cases of a test."""
    found = []
    for variant in VARIANTS:
        with variant.registered():
            for place, (role, home) in enumerate(unplayed(variant).homes()):
                name = f"{variant.name}-{role.name}-{home}"
                found.append(pytest.param(variant, place, id=name, marks=marks_of(variant)))
    return tuple(found)


@cache
def recorded(variant: Variant) -> Recording:
    """Its recording; made once a process."""
    with tempfile.TemporaryDirectory(prefix="recording-") as folder:
        (loop,) = variant.record(Path(folder) / "deployment")
    return loop.recording(variant.name)


@cache
def unplayed(variant: Variant) -> Recording:
    """Its deployment, with the beginnings of its journals: what tests are named by, and no test compares with."""
    with tempfile.TemporaryDirectory(prefix="recording-") as folder:
        loop = next(variant.record(Path(folder) / "deployment"))
    return loop.recording(variant.name)


def require_all(kinds: Iterable[str]) -> None:
    """Refuse registered systems of which there is no recording.

    Raises:
        LookupError: there is one.
    """
    missing = sorted(set(kinds) - {variant.kind for variant in VARIANTS})
    if missing:
        raise LookupError(f"system {', '.join(missing)}: expected a loop in tests/shared/recordings.py, got none")


def form_of(role: Role) -> tuple[Any, ...]:
    """What tells the roles of a system apart, whose party's they are aside."""
    writes = tuple(sorted({common_name(name) for name in (*role.writes, *role.writes_abroad)}))
    return common_name(role.name), writes, role.further_key_zones, tuple(map(common_name, role.broadcasts))
