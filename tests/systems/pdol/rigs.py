"""A small PDOL deployment, and rigs for its domains and its aggregator.

It is loaded after the rigs of the first system, whose module it names.
"""

from __future__ import annotations

from typing import Any

import following
import numpy as np
from hushstream_test_rigs import NONCE, Rig, Seen

from hushstream.engine.records import Step
from hushstream.privacy.keys import Key, seeded_key
from hushstream.schemas import codec
from hushstream.systems.pdol.aggregator import AggregatorMachine
from hushstream.systems.pdol.algorithm.rows import Rows
from hushstream.systems.pdol.configuration import PdolConfig, PredictionConfig, RecordConfig, SharingConfig
from hushstream.systems.pdol.guarantee import PdolSystem
from hushstream.systems.pdol.nodes.home import HomeMachine

DIMENSION, NODES, SLOTS, HORIZON, WAIT = 12, 2, 3, 4, 2
SECRET = Key(b"\x07" * 31 + b"\x01")
"""A key that is not seeded: what it gives may be called private."""


def make_config(**changes: Any) -> PdolConfig:
    records = {"dimension": DIMENSION, "records_per_user": 4, "label_slots": WAIT, **changes.pop("records", {})}
    sharing = {
        "epsilon": 8.0,
        "slots_per_release": SLOTS,
        "horizon": HORIZON,
        "epochs": 3,
        **changes.pop("sharing", {}),
    }
    place = changes.pop("place", "released")
    plain = {"deployment": "small", "nodes": NODES, "prediction": PredictionConfig(place), **changes}
    return PdolConfig(records=RecordConfig(**records), sharing=SharingConfig(**sharing), **plain)


def make_system(**changes: Any) -> PdolSystem:
    return PdolSystem.of(make_config(**changes))


def some_row(seed: int) -> Rows:
    """One record of norm below 1 with five features."""
    draw = np.random.default_rng(seed)
    indices = np.sort(draw.choice(DIMENSION, 5, replace=False)).astype(np.int32)
    values = draw.normal(size=5)
    whole = np.trunc(values / np.linalg.norm(values) * 4096).astype(np.int64)
    return Rows(np.array([0, 5], dtype=np.int64), indices, whole, np.ones(1, dtype=np.int8))


class NodeRig(Rig):
    """A domain with shorthand for what a client sends."""

    def __init__(
        self, system: PdolSystem | None = None, key: Key | None = None, partition: int = 0, nonce: bytes = NONCE
    ) -> None:
        self.system = make_system() if system is None else system
        self.key = seeded_key(1, "edge") if key is None else key
        self.partition = partition
        super().__init__(self.fresh(), nonce)

    def fresh(self) -> HomeMachine:
        return HomeMachine(self.system, self.partition, self.key)

    def record(self, event_id: str, seed: int = 0, user: str = "ann", **changes: Any) -> int:
        row = some_row(seed)
        fields = {
            "event_id": event_id,
            "user": user,
            "node": self.partition,
            "indices": row.indices.astype("<i4").tobytes(),
            "values": row.values.astype("<i4").tobytes(),
            "after_phase": -1,
            **changes,
        }
        return self.put("records", codec.encode("Record", fields), self.partition)

    def label(self, event_id: str, label: int = 1, user: str = "ann") -> int:
        fields = {"event_id": event_id, "user": user, "label": label}
        return self.put("records", codec.encode("Label", fields), self.partition)

    def end_phase(self, phase: int = 0, origin: int = -1) -> int:
        fields = {"phase": phase, "origin": origin, "config_digest": bytes(16), "after_click": -1}
        return self.put("records", codec.encode("Seal", fields), self.partition)

    def member(self, node: int, present: bool) -> int:
        fields = {"node": node, "present": present, "config_digest": bytes(16)}
        return self.put("records", codec.encode("Membership", fields), self.partition)

    def forget(self, user: str, digest: bytes | None = None) -> int:
        fields = {"user": user, "config_digest": digest or self.system.digest}
        return self.put("records", codec.encode("Forget", fields), self.partition)

    def play(self, first: int, count: int, label: bool = True, users: int = 10**6) -> Seen:
        """Records, each by somebody else and each labelled at once, and a fold."""
        for number in range(first, first + count):
            user = f"user-{number % users}"
            self.record(f"e{number}", number, user)
            if label:
                self.label(f"e{number}", 1 if number % 3 else -1, user)
        return self.fold()

    def sums(self, seen: Seen | None = None) -> list[dict[str, Any]]:
        return (seen or self.seen).records("releases", "GradientSum")

    def said(self, seen: Seen | None = None) -> dict[str, int]:
        """What was predicted, by event."""
        found: dict[str, int] = {}
        for record in (seen or self.seen).journals:
            labels = np.frombuffer(record["predicted"], np.int8).tolist()
            found.update(zip(record["event_ids"], labels, strict=True))
        return found


class AggregatorRig(Rig):
    """The aggregator of the deployment."""

    def __init__(self, system: PdolSystem | None = None) -> None:
        self.system = make_system() if system is None else system
        super().__init__(self.fresh())

    def fresh(self) -> AggregatorMachine:
        return AggregatorMachine(self.system, 0)

    def take_from(self, *nodes: NodeRig) -> Seen:
        """Everything that domains have released so far, domain by domain."""
        for node in nodes:
            for output in node.seen.releases("releases"):
                self.put("releases", output.value)
        return self.fold()

    @property
    def models(self) -> list[dict[str, Any]]:
        return [codec.decode(value)[1] for value in self.journal]


def recover(rig: Rig, machine: Any) -> list[Step]:
    """Take a fresh machine through a journal as a worker does: what its inputs no longer give, it adopts."""
    machine.start(rig.genesis)
    return following.recover(rig, machine)
