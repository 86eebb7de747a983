"""A small deployment of films, and rigs for its raters, its collector and its aggregator.

It is loaded after the rigs of the root ``conftest.py``, whose module it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from following import recover as recover
from hushstream_test_rigs import NONCE, Rig, Seen

from hushstream.engine.configuration import PartitionConfig
from hushstream.privacy.keys import Key, seeded_key
from hushstream.schemas import codec
from hushstream.systems.bgt.artefacts import BgtSystem
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig, ScaleConfig
from hushstream.systems.bgt.edge.rater import RaterMachine
from hushstream.systems.bgt.records import Model, Round, Slots, null_slots, packed_slots, round_fields
from hushstream.systems.bgt.server import BgtAggregatorMachine
from hushstream.systems.bgt.shuffler import CollectorMachine

ITEMS, FACTORS = 40, 2
SECRET = Key(b"\x07" * 31 + b"\x02")
"""A key that is not seeded: what it gives may be called private."""


def make_config(partitions: int = 1, features: int = 0, budget: Any = None, **release: Any) -> BgtConfig:
    plain = {"epsilon": 10.0, "pairs": 8, "top": 12, "factors": FACTORS, **release}
    parts = PartitionConfig(partitions, 1)
    return BgtConfig(
        "films", ITEMS, features, ScaleConfig(1, 5), ReleaseConfig(**plain), partitions=parts, budget=budget
    )


def make_system(public_dataset: bool = False, **changes: Any) -> BgtSystem:
    config = make_config(**changes)
    return BgtSystem.of(config, np.zeros((ITEMS, config.features)), public_dataset)


def phase_end_of(phase: int, origin: int, digest: bytes) -> bytes:
    return codec.encode("Seal", {"phase": phase, "origin": origin, "config_digest": digest, "after_click": -1})


class RaterRig(Rig):
    """A rater with shorthand for what a client sends, and for what the server publishes."""

    def __init__(self, system: BgtSystem | None = None, key: Key | None = None, partition: int = 0) -> None:
        self.system = make_system() if system is None else system
        self.key = seeded_key(1, "edge") if key is None else key
        self.partition = partition
        super().__init__(self.fresh())

    def fresh(self) -> RaterMachine:
        return RaterMachine(self.system, self.partition, self.key)

    def rate(self, user: str, items: Sequence[int] = (0, 1, 2), values: Sequence[float] = (5.0, 1.0, 3.0)) -> int:
        columns = {"items": np.array(items, "<i4").tobytes(), "values": np.array(values, "<f8").tobytes()}
        return self.put("ratings", codec.encode("Ratings", {"user": user, **columns}), self.partition)

    def ask(self, event_id: str, user: str = "ann", items: Sequence[int] = (3, 4), after_round: int = -1) -> int:
        fields = {"event_id": event_id, "user": user, "items": np.array(items, "<i4").tobytes()}
        return self.put("ratings", codec.encode("RatingQuery", {**fields, "after_round": after_round}), self.partition)

    def end(self, phase: int) -> int:
        return self.put("ratings", phase_end_of(phase, -1, bytes(16)), self.partition)

    def forget(self, user: str, digest: bytes | None = None) -> int:
        fields = {"user": user, "config_digest": digest or self.system.digest}
        return self.put("ratings", codec.encode("Forget", fields), self.partition)

    def slots(self, seen: Seen | None = None) -> list[dict[str, Any]]:
        return (seen or self.seen).records("updates", "RatingSlot")

    def predicted(self, seen: Seen | None = None) -> dict[str, tuple[list[float], int]]:
        """(values, model version) by event id."""
        found = {}
        for record in (seen or self.seen).journals:
            ends = np.cumsum(np.frombuffer(record["counts"], "<i4"))[:-1]
            parts = np.split(np.frombuffer(record["values"], "<f8"), ends)
            for event_id, values in zip(record["event_ids"], parts, strict=False):
                found[event_id] = values.tolist(), record["model_version"]
        return found


class CollectorRig(Rig):
    """A collector with shorthand for what raters send."""

    def __init__(self, system: BgtSystem | None = None, key: Key | None = None, nonce: bytes = NONCE) -> None:
        self.system = make_system() if system is None else system
        self.key = seeded_key(1, "shuffler") if key is None else key
        super().__init__(self.fresh(), nonce)

    def fresh(self) -> CollectorMachine:
        return CollectorMachine(self.system, 0, self.key)

    def slot(self, number: int, slot: Slots | None = None, asked: int = 0, **changes: Any) -> int:
        content = packed_slots(null_slots(1, self.system.config) if slot is None else slot)[0]
        fields = {
            "slot_id": (number + 1000 * asked).to_bytes(16, "big"),
            "config_digest": self.system.digest,
            "round": asked,
            "content": content,
            **changes,
        }
        return self.put("updates", codec.encode("RatingSlot", fields))

    def open(self, asked: Round | None, number: int | None = None) -> int:
        fields = round_fields(asked, asked.number if number is None else number, self.system.digest)
        return self.put("updates", codec.encode("RatingRound", fields))

    def end(self, phase: int, origin: int = 0) -> int:
        return self.put("updates", phase_end_of(phase, origin, self.system.digest))

    def released(self, seen: Seen | None = None) -> list[dict[str, Any]]:
        return (seen or self.seen).records("releases", "RatingSums")

    def play(self, rounds: int, slots: int = 6) -> None:
        """So many rounds, with slots of one item each."""
        for number in range(rounds):
            self.play_round(number, slots)

    def play_round(self, number: int, slots: int = 6) -> Seen:
        """One round, with slots of one item each."""
        config = self.system.config
        asked = rounds_of(config)[number]
        if number:
            self.open(asked)
        for user in range(slots):
            self.slot(user, item_slot(config, user) if asked.kind == "items" else None, number)
        self.end(number)
        return self.fold()


class ModelRig(Rig):
    """The aggregator of a deployment of films."""

    def __init__(self, system: BgtSystem | None = None) -> None:
        self.system = make_system() if system is None else system
        super().__init__(self.fresh())

    def fresh(self) -> BgtAggregatorMachine:
        return BgtAggregatorMachine(self.system, 0)

    def give(self, values: Sequence[bytes]) -> Seen:
        for value in values:
            self.put("releases", value)
        return self.fold()


def item_slot(config: BgtConfig, item: int, value: int = 1 << 18, weight: int = 1 << 15) -> Slots:
    """A slot of kind A with one item."""
    slot = null_slots(1, config)
    slot.items[0, 0], slot.values[0, 0], slot.weights[0] = item, value, weight
    return slot


def rounds_of(config: BgtConfig, kept: int = 1) -> list[Round]:
    """Three rounds as a server might ask for them."""
    none, some = np.zeros((config.items, 0)), np.ones((config.items, kept))
    zeros, top = np.zeros(config.items), np.arange(config.top)
    last = Round(2, "factors", Model(zeros, some)) if kept else Round(2, "items", Model(zeros, none))
    return [Round(0, "items", Model(zeros, none)), Round(1, "pairs", Model(zeros, none), top, np.ones(len(top))), last]


def outputs_of(seen: Seen, topic: str) -> list[bytes]:
    return [output.value for output in seen.releases(topic)]


def all_rounds(
    system: BgtSystem, users: int = 30, seed: int = 3, lost: int = 3
) -> tuple[RaterRig, CollectorRig, ModelRig]:
    """Users with two tastes through three rounds; rounds from ``lost`` on are never released."""
    rater, collector, server = RaterRig(system), CollectorRig(system), ModelRig(system)
    draw = np.random.default_rng(seed)
    for user in range(users):
        items = draw.permutation(ITEMS)[:12]
        rater.rate(f"u{user}", items.tolist(), (3 + 2 * np.where((items + user) % 2, 1.0, -1.0)).tolist())
    for number in range(3):
        rater.end(number)
        for value in outputs_of(rater.fold(), "updates"):
            collector.put("updates", value)
        if number == lost:
            collector.machine.request_epoch(bytes(16), forked=True)
        seen = server.give(outputs_of(collector.fold(), "releases"))
        models = server.genesis, *server.journal
        rater.logs["models", 0] = []
        for value in models:
            rater.put("models", value)
        for value in outputs_of(seen, "rounds"):
            rater.put("rounds", value)
    rater.fold()
    return rater, collector, server
