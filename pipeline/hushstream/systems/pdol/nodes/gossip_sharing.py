"""The paper's form of sharing: a node learns for itself, and sends noised parameters to its neighbours.

Each counted slot is one round: the node mixes what it and its neighbours have sent, takes a step along the record's
gradient, and sends its parameters with noise (`hushstream.systems.pdol.algorithm.gossip`). If a neighbour is late, its
last sent parameters are used. Parameters of a round that this node has not reached wait for that round. The noise
address contains the events so far, the record and the state, so a journal that was rolled back draws other noise for
other content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.learner.model_parts import ModelReader
from hushstream.engine.records import InputSlice, Output, TopicPartition
from hushstream.engine.state.declared import FIXED, DeclaresFields, Field, Single, array, own_part, record
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.systems.pdol.aggregator import PdolOutcome
from hushstream.systems.pdol.algorithm.gossip import (
    GossipNode,
    draw_noise,
    gossip_address,
    mixing_of,
    noise_law,
    require_gossip,
)
from hushstream.systems.pdol.algorithm.rows import Rows, Slot, labelled, sums_by_row
from hushstream.systems.pdol.configuration import PdolConfig
from hushstream.systems.pdol.guarantee import PdolSystem
from hushstream.systems.pdol.nodes.home import HomeMachine, Slots, home_state

if TYPE_CHECKING:
    from hushstream.counting.calibration import NodeNoise

_KINDS = frozenset({"Parameters", "Membership", "Seal"})
_NEIGHBOUR = record(
    "Neighbour",
    node="int",
    position="long",
    phase="long",
    waiting=array(record("Waiting", after="long", values="bytes")),
)


@lru_cache(maxsize=8)
def _mixing(config: PdolConfig) -> NDArray[np.int64]:
    return mixing_of(require_gossip(config), config.nodes)


@lru_cache(maxsize=256)
def _law(config: PdolConfig, round_number: int) -> NodeNoise:
    return noise_law(require_gossip(config), round_number, config.records.dimension)


class Neighbour:
    """The received parameters of one neighbour.

    Attributes:
        position: next offset of its parameters.
        phase: the last phase that it has ended.
        waiting: (round, parameters) of rounds that this node has not reached, oldest first.
    """

    def __init__(self) -> None:
        """Begin without parameters."""
        self.position = 0
        self.phase = -1
        self.waiting: deque[tuple[int, NDArray[np.int64]]] = deque()


def _pack_neighbours(neighbours: Mapping[int, Neighbour]) -> list[dict[str, Any]]:
    return [_dumped(other, found) for other, found in neighbours.items()]


def _unpack_neighbours(value: Sequence[Mapping[str, Any]], neighbours: dict[int, Neighbour]) -> dict[int, Neighbour]:
    for item in value:
        found = neighbours[item["node"]]
        found.position, found.phase = item["position"], item["phase"]
        found.waiting = deque((one["after"], _values(one["values"])) for one in item["waiting"])
    return neighbours


class GossipSharing(DeclaresFields):
    """Noised parameters of one node."""

    fields: ClassVar[Mapping[str, Field]] = {
        "neighbours": Single(array(_NEIGHBOUR), _pack_neighbours, _unpack_neighbours, disk="heard"),
        "node": own_part(),
    }
    derived: ClassVar[Mapping[str, str]] = dict.fromkeys(("_config", "_digest", "phase_ends"), FIXED)
    state = home_state("a node's state", "GossipState", fields)
    readers: Sequence[ModelReader] = ()
    draws_ahead = False
    predicts_in_floats = False

    def __init__(self, system: PdolSystem, partition: int) -> None:
        """Begin before the first round."""
        self._config, self._digest = system.config, system.digest
        mixing = _mixing(system.config)
        self.node = GossipNode(partition, mixing, system.config)
        others = [int(other) for other in np.flatnonzero(mixing[partition]) if other != partition]
        self.neighbours = {other: Neighbour() for other in others}
        self.phase_ends: TopicPartition = ("parameters", partition)

    @property
    def read(self) -> Mapping[TopicPartition, int]:
        return {("parameters", other): neighbour.position for other, neighbour in self.neighbours.items()}

    @property
    def version(self) -> int:
        """See `Sharing.version`: number of finished rounds."""
        return self.node.round - 1

    def predictor_phase(self, ended_phase: int) -> int:
        """See `Sharing.predictor_phase`: the last phase that every neighbour has ended."""
        return min((neighbour.phase for neighbour in self.neighbours.values()), default=ended_phase)

    def open_noise(self, home: HomeMachine) -> None:
        """See `Sharing.open_noise`: each round draws for itself."""

    def redraw_noise(self, home: HomeMachine) -> None:
        """See `Sharing.redraw_noise`: each round draws for itself."""

    # A batch.

    def on_broadcast(self, part: InputSlice) -> Mapping[str, int]:
        """See `Sharing.on_broadcast`: parameters and phase ends of a neighbour; other records are ignored."""
        neighbour, taken = self.neighbours[part.partition], 0
        for one in part.records:
            try:
                name, fields = codec.decode(one.value, _KINDS)
            except CodecError:
                continue
            if fields["config_digest"] != self._digest:
                continue
            if name == "Seal":
                neighbour.phase = max(neighbour.phase, fields["phase"])
            elif name == "Parameters" and self._new(neighbour, fields):
                neighbour.waiting.append((fields["after"], _values(fields["values"])))
                taken += 1
        neighbour.position = part.high
        return {PdolOutcome.PARAMETERS: taken} if taken else {}

    def _new(self, neighbour: Neighbour, fields: Mapping[str, Any]) -> bool:
        """Whether parameters are of this deployment's size, and of a later round than those that wait."""
        right = len(fields["values"]) == 8 * self._config.records.dimension
        return right and (not neighbour.waiting or fields["after"] > neighbour.waiting[-1][0])

    def predictions(self, slots: Slots) -> None:
        """See `Sharing.predictions`: parameters change with each round."""

    def predict(self, slots: Slots, place: int, coin: float) -> tuple[int, bytes]:
        """See `Sharing.predict`: with the node's own parameters, or those that it sent."""
        row = slots.rows.part(place, place + 1)
        weights = self.node.weights()[row.indices]
        return (1 if sums_by_row(weights * row.values, row.indptr)[0] > 0 else -1), b""

    def learn(self, slot: Slot, label: int) -> None:
        """See `Sharing.learn`: a node has no experts."""

    # Rounds.

    @property
    def until_release(self) -> int | None:
        """See `Sharing.until_release`: each slot is followed by a release, up to the last round."""
        return 1 if self.node.round <= require_gossip(self._config).rounds else None

    def add(self, slots: Sequence[Slot]) -> None:
        """See `Sharing.add`: only slots after the last round are followed by no release, and nothing comes of them."""

    def release(self, home: HomeMachine, slots: Sequence[Slot]) -> tuple[bytes, Output]:
        """See `Sharing.release`: mix, step along the one slot, and send the parameters."""
        self.feed()
        rows, after = labelled(slots), self.node.round
        sent = self.node.step(rows, self._noise(home, rows))[1]
        release_id = home.release_id(after)
        fields = _parameters(home, release_id, after, sent)
        return release_id, Output(*self.phase_ends, codec.encode("Parameters", fields))

    def feed(self) -> None:
        """Use the waiting parameters of rounds that this node has reached."""
        for other, neighbour in self.neighbours.items():
            while neighbour.waiting and neighbour.waiting[0][0] < self.node.round:
                self.node.on_parameters(other, *neighbour.waiting.popleft())

    def _noise(self, home: HomeMachine, slot: Rows) -> NDArray[np.int64]:
        """The noise of the parameters after this slot's round, int64 (n,)."""
        config, number = self._config, self.node.round
        events = home.events.to_bytes(16, "little")
        row = (slot.indices.tobytes(), slot.values.tobytes(), slot.labels.tobytes())
        content = home.key.digest("parameters", events, *row, self.node.dump())
        address = gossip_address(
            config, self._digest, home.releases.nonce, home.releases.epoch.number, home.partition, number
        )
        address = replace(address, partition=home.partition, content=content)
        return np.asarray(draw_noise(_law(config, number), [home.key], [address], config.records.dimension)[0])

    def drop(self) -> None:
        """See `Sharing.drop`: a round that is left out changes nothing."""

    def skip(self, releases: int) -> None:
        """See `Sharing.skip`: rounds whose parameters were sent are not repeated."""
        self.node.round += releases


def gossip_home(system: PdolSystem, partition: int, key: Key, ring: KeyRing | None = None) -> HomeMachine:
    """A node in the form of the paper; arguments as `HomeMachine`."""
    return HomeMachine(system, partition, GossipSharing(system, partition), key, ring)


def _parameters(home: HomeMachine, release_id: bytes, after: int, sent: NDArray[np.int64]) -> dict[str, Any]:
    """The record of a node's parameters after a round."""
    return {
        "release_id": release_id,
        "config_digest": home.system.digest,
        "node": home.partition,
        "epoch": home.releases.epoch.number,
        "after": after,
        "values": sent.astype("<i8").tobytes(),
        **home.system.stated[home.system.as_stated(home.key.reproducible)],
    }


def _values(packed: bytes) -> NDArray[np.int64]:
    return np.frombuffer(packed, "<i8").astype(np.int64)


def _dumped(other: int, neighbour: Neighbour) -> dict[str, Any]:
    waiting = [{"after": after, "values": values.astype("<i8").tobytes()} for after, values in neighbour.waiting]
    return {"node": other, "position": neighbour.position, "phase": neighbour.phase, "waiting": waiting}
