"""A small deployment of vendors, and rigs for its learner, counters and aggregator.

It is loaded after the rigs of the root ``conftest.py``, whose module it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from following import recover as recover
from hushstream_test_rigs import NONCE, Rig, Seen

from hushstream.engine.configuration import FeedbackConfig, PartitionConfig
from hushstream.privacy.keys import Key, seeded_key
from hushstream.schemas import codec
from hushstream.schemas.topics import of_party
from hushstream.systems.pdap.algorithm.aggregate import Outcomes
from hushstream.systems.pdap.algorithm.blocks import Blocks
from hushstream.systems.pdap.configuration import BlockConfig, CellConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.counter import BlockCounterMachine
from hushstream.systems.pdap.deployment import PdapSystem
from hushstream.systems.pdap.edge import PdapLearnerMachine
from hushstream.systems.pdap.records import outcome_fields, parse_outcomes, parse_part
from hushstream.systems.pdap.server import PdapAggregatorMachine

SECRET = Key(b"\x07" * 31 + b"\x02")
"""A key that is not seeded: what it gives may be called private."""
WAIT_SECONDS = 10.0
SECTIONS = {
    "cells": CellConfig,
    "feedback": FeedbackConfig,
    "release": BlockConfig,
    "partitions": PartitionConfig,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "cells": {"split_at": 30.0, "levels": 2},
    "feedback": {"attribution_window_seconds": WAIT_SECONDS, "remembered_events": 1000},
    "release": {"first_window": 40, "kappa": 2.0},
}

Reward = tuple[int, int, int]
"""Cell of the deepest level that the context lies in, arm, reward."""


def make_config(**changes: Any) -> PdapConfig:
    """The small deployment; a section is changed by a mapping, a value by itself."""
    sections = {name: kind(**{**DEFAULTS.get(name, {}), **changes.pop(name, {})}) for name, kind in SECTIONS.items()}
    plain = {"deployment": "shops", "vendors": (VendorConfig("one", 3), VendorConfig("two", 4)), "dimension": 2}
    return PdapConfig(**{**plain, **sections, **changes})


NAMED = (VendorConfig("one", 3, named=True), VendorConfig("two", 4, named=True))
"""The vendors of the small deployment, their items having names."""


def make_system(public_dataset: bool = False, **changes: Any) -> PdapSystem:
    return PdapSystem.of(make_config(**changes), public_dataset)


def on_trial(named: bool = False, **changes: Any) -> PdapSystem:
    """The small deployment with vendors on trial: two of five visits are clean."""
    vendors = tuple(VendorConfig(name, arms, named, 0.3) for name, arms in (("one", 3), ("two", 4)))
    return make_system(vendors=vendors, clean_share=0.4, **changes)


def some_rewards(seed: int, count: int) -> list[Reward]:
    """Outcomes at the root, whose contexts lie in drawn children, with drawn arms and rewards."""
    draw = np.random.default_rng(seed)
    return [(int(draw.integers(4)), int(draw.integers(7)), int(draw.integers(2))) for _ in range(count)]


def outcomes_of(first: int, rows: Sequence[Reward]) -> Outcomes:
    """Outcomes named by number from ``first`` on, of contexts that the root served."""
    children, arms, rewards = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    names = [list(number.to_bytes(16, "big")) for number in range(first, first + len(rows))]
    return Outcomes(np.zeros_like(arms), (1 << 57) | children, arms, rewards, np.array(names, dtype=np.uint8))


class VendorLearnerRig(Rig):
    """A learner with shorthand for what a client sends."""

    def __init__(
        self,
        system: PdapSystem | None = None,
        key: Key | None = None,
        partition: int = 0,
        nonce: bytes = NONCE,
        vendor: str = "one",
    ) -> None:
        self.system = make_system() if system is None else system
        self.vendor = vendor
        self.key = seeded_key(1, f"edge.{vendor}") if key is None else key
        self.partition = partition
        super().__init__(self.fresh(), nonce)

    def fresh(self) -> PdapLearnerMachine:
        return PdapLearnerMachine(self.system, self.vendor, self.partition, self.key)

    def context(self, event_id: str, at: Sequence[float] = (0.2, 0.7), **fields: Any) -> int:
        point = np.asarray(at, "<f4").tobytes()
        record = {"event_id": event_id, "user": "ann", "line": self.vendor, "context": point, **fields}
        return self.put(f"contexts.{self.vendor}", codec.encode("Context", record), self.partition)

    def shown(self, event_id: str, arm: int, user: str = "ann") -> int:
        return self._feedback("shown", event_id, arm, 0.0, user)

    def reward(self, event_id: str, arm: int, reward: float = 1.0, user: str = "ann") -> int:
        return self._feedback("reward", event_id, arm, reward, user)

    def end_phase(self, phase: int = 0, after_click: int = -1) -> int:
        fields = {"phase": phase, "origin": -1, "config_digest": bytes(16), "after_click": after_click}
        return self.put(f"contexts.{self.vendor}", codec.encode("Seal", fields), self.partition)

    def item(self, item: str, version: int, *, offered: bool = True, **changes: Any) -> int:
        digest = changes.pop("config_digest", self.system.digest)
        items = [{"item": item, "offered": offered, "title": "", "features": "", **changes}]
        fields = {"version": version, "items": items, "config_digest": digest}
        return self.put(f"items.{self.vendor}", codec.encode("ItemChanges", fields))

    def model(self, value: bytes) -> int:
        return self.put("models", value)

    def _feedback(self, kind: str, event_id: str, arm: int, reward: float, user: str) -> int:
        fields = {"kind": kind, "event_id": event_id, "user": user, "arm": arm, "reward": reward}
        return self.put(f"clicks.{self.vendor}", codec.encode("Feedback", fields), self.partition)

    def decide(self, event_id: str, at: Sequence[float] = (0.2, 0.7), **fields: Any) -> int:
        """Send one context and fold; gives the arm."""
        self.context(event_id, at, **fields)
        return self.fold().arms[event_id]

    def interact(self, event_id: str, reward: float | None = 1.0, user: str = "ann") -> int:
        """Decide, show, and (unless None) reward; gives the arm."""
        arm = self.decide(event_id, user=user)
        self.shown(event_id, arm, user)
        if reward is not None:
            self.reward(event_id, arm, reward, user)
        self.fold()
        return arm

    def outcomes(self, seen: Seen | None = None) -> list[tuple[int, int, int, int]]:
        """What was sent to counters: (counter, cell, arm, reward) of each outcome."""
        found: list[tuple[int, int, int, int]] = []
        for fields in (seen or self.seen).records(self.system.counters_topic("outcomes", self.vendor), "Outcomes"):
            sent = parse_outcomes(fields)
            columns = (sent.cells.tolist(), sent.arms.tolist(), sent.rewards.tolist())
            found += [(fields["counter"], *row) for row in zip(*columns, strict=True)]
        return found


class BlockCounterRig(Rig):
    """A counter with shorthand for what learners send."""

    def __init__(
        self, system: PdapSystem | None = None, key: Key | None = None, nonce: bytes = NONCE, vendor: str = ""
    ) -> None:
        self.system = make_system() if system is None else system
        self.key = seeded_key(1, of_party("counter", vendor)) if key is None else key
        self.vendor, self.number = vendor, self.system.homes[vendor] if vendor else 0
        super().__init__(self.fresh(), nonce)

    def fresh(self) -> BlockCounterMachine:
        return BlockCounterMachine(self.system, self.key, vendor=self.vendor)

    def outcomes(self, first: int, rows: Sequence[Reward], **changes: Any) -> int:
        fields = outcome_fields(self.number, self.system.digest, outcomes_of(first, rows))
        return self.put(of_party("outcomes", self.vendor), codec.encode("Outcomes", {**fields, **changes}))

    def end_phase(self, phase: int = 0, origin: int | None = None, digest: bytes | None = None) -> int:
        """The end of a phase, from one learner partition or from all that this counter waits for."""
        origins = range(self.system.origins) if origin is None else [origin]
        fields = {"phase": phase, "config_digest": digest or self.system.digest, "after_click": -1}
        topic = of_party("outcomes", self.vendor)
        return [self.put(topic, codec.encode("Seal", {**fields, "origin": one})) for one in origins][-1]

    def change(self, arm: int, *, offered: bool) -> int:
        fields = {"arm": arm, "offered": offered, "config_digest": self.system.digest}
        return self.put(of_party("outcomes", self.vendor), codec.encode("ArmChange", fields))

    def released(self, seen: Seen | None = None) -> list[dict[str, Any]]:
        return (seen or self.seen).records("releases", "BlockRelease")

    def altered(self, offset: int, **fields: Any) -> None:
        """Change a record that lies in the log."""
        log = self.logs[of_party("outcomes", self.vendor), 0]
        name, found = codec.decode(log[offset].value)
        log[offset] = log[offset]._replace(value=codec.encode(name, {**found, **fields}))


class TicketAggregatorRig(Rig):
    """The aggregator of a deployment of vendors."""

    def __init__(self, system: PdapSystem | None = None) -> None:
        self.system = make_system() if system is None else system
        super().__init__(self.fresh())

    def fresh(self) -> PdapAggregatorMachine:
        return PdapAggregatorMachine(self.system, 0)

    def change(self, arm: int, *, offered: bool) -> Seen:
        fields = {"arm": arm, "offered": offered, "config_digest": self.system.digest}
        return self.give([codec.encode("ArmChange", fields)])

    def give(self, values: Iterable[bytes]) -> Seen:
        for value in values:
            self.put("releases", value)
        return self.fold()


def released_values(
    system: PdapSystem, batches: Sequence[Sequence[Reward]], key: Key | None = None, vendor: str = ""
) -> list[bytes]:
    """What a counter that was given these batches sends to the aggregator, each batch ended by a phase end."""
    rig = BlockCounterRig(system, key, vendor=vendor)
    first = 0
    for number, rows in enumerate(batches):
        if rows:
            rig.outcomes(first, rows)
        rig.end_phase(number)
        first += len(rows)
    return [output.value for output in rig.fold().releases("releases")]


def blocks_of(fields: Mapping[str, Any]) -> Blocks:
    """The blocks of a release."""
    return parse_part(fields).blocks


def models_of(system: PdapSystem, batches: Sequence[Sequence[Reward]]) -> list[bytes]:
    """The genesis and the versions of an aggregator over a counter that was given these batches."""
    aggregator = TicketAggregatorRig(system)
    for arm in range(system.config.arms) if system.config.named_items else ():
        aggregator.change(arm, offered=True)
    aggregator.give(released_values(system, batches))
    return [aggregator.genesis, *aggregator.journal]


def played(system: PdapSystem, flip: bool, events: int = 30) -> VendorLearnerRig:
    """Some events; with ``flip`` every reward r is 1 - r. A reward of 0 is one that never comes."""
    rig = VendorLearnerRig(system, SECRET)
    draw = np.random.default_rng(5)
    if system.config.named_items:
        for version, item in enumerate("abc", 1):
            rig.item(item, version)
    for number in range(events):
        if system.config.named_items and number in (10, 20):
            rig.item("b", 4 + number // 20, offered=number == 20)
        event = f"e{number}"
        arm = rig.decide(event, draw.random(2).tolist())
        way, reward = draw.integers(4), abs(int(draw.integers(2)) - flip)
        if way:
            rig.shown(event, arm if way > 1 else (arm + 1) % 7)
        if reward:
            rig.reward(event, arm)
        rig.wait(float(draw.choice([0.0, 3.0, 8.0])))
        if number % 10 == 9:
            rig.end_phase(number // 10)
    rig.fold()
    return rig
