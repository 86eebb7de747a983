"""The role of a node in the form of the paper: it learns for itself and exchanges noised parameters with neighbours.

A slot that is counted is a round: the node mixes what it and its neighbours have sent, steps along the record's
gradient, and sends its parameters with noise (`hushstream.systems.pdol.algorithm.gossip`). A neighbour that is late is
mixed with what it sent last; what one sent after a round that this node has not come to waits for that round.

What is drawn is named by the events until then, by the record and by the state that it meets, so a journal that was
rolled back meets other noise under other content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.records import InputSlice, Output, TopicPartition
from hushstream.engine.state.declared import Single, own_part
from hushstream.engine.state.parts import array, record
from hushstream.privacy.amounts import delta_to_bytes
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.systems.pdol.algorithm.gossip import GossipNode, draw_noise, gossip_address, noise_law, require_gossip
from hushstream.systems.pdol.algorithm.graphs import mixing_of
from hushstream.systems.pdol.algorithm.rows import Rows, sums_by_row
from hushstream.systems.pdol.algorithm.slot import Slot, labelled
from hushstream.systems.pdol.configuration import PdolConfig
from hushstream.systems.pdol.deployment import PdolSystem
from hushstream.systems.pdol.nodes.home import HomeFold, HomeMachine, home_state
from hushstream.systems.pdol.nodes.incoming import Slots
from hushstream.systems.pdol.outcomes import PdolOutcome

if TYPE_CHECKING:
    from hushstream.counting.calibration import NodeNoise

_KINDS = frozenset({"Parameters", "Membership", "Seal"})
_HEARD = record(
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
    """What was heard of one neighbour.

    Attributes:
        position: how far its parameters were read.
        phase: the last phase that it has ended.
        waiting: (round, parameters) that it sent after rounds that this node has not come to, oldest first.
    """

    def __init__(self) -> None:
        """Nothing was heard."""
        self.position = 0
        self.phase = -1
        self.waiting: deque[tuple[int, NDArray[np.int64]]] = deque()


def _pack_heard(heard: Mapping[int, Neighbour]) -> list[dict[str, Any]]:
    return [_dumped(other, found) for other, found in heard.items()]


def _unpack_heard(value: Sequence[Mapping[str, Any]], heard: dict[int, Neighbour]) -> dict[int, Neighbour]:
    for item in value:
        found = heard[item["node"]]
        found.position, found.phase = item["position"], item["phase"]
        found.waiting = deque((one["after"], _values(one["values"])) for one in item["waiting"])
    return heard


class GossipMachine(HomeMachine):
    """One node."""

    state = home_state(
        "a node's state", "GossipState", heard=Single(array(_HEARD), _pack_heard, _unpack_heard), node=own_part()
    )

    def __init__(self, system: PdolSystem, partition: int, key: Key, ring: KeyRing | None = None) -> None:
        mixing = _mixing(system.config)
        self.node = GossipNode(partition, mixing, system.config)
        others = [int(other) for other in np.flatnonzero(mixing[partition]) if other != partition]
        self.heard = {other: Neighbour() for other in others}
        super().__init__(system, partition, key, ring)

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        """See `Machine.broadcasts`: what neighbours send."""
        return tuple(("parameters", other) for other in self.heard)

    @property
    def read(self) -> Mapping[TopicPartition, int]:
        return {("parameters", other): heard.position for other, heard in self.heard.items()}

    @property
    def held_phase(self) -> int:
        """See `HomeMachine.held_phase`: every neighbour has sent what belongs to it."""
        return min((heard.phase for heard in self.heard.values()), default=self.ended_phase)

    @property
    def version(self) -> int:
        """See `HomeMachine.version`: rounds that were gone through."""
        return self.node.round - 1

    @property
    def draws_ahead(self) -> bool:
        return False

    def open_noise(self) -> None:
        """See `HomeMachine.open_noise`: each round draws for itself."""

    def redraw_noise(self) -> None:
        """See `HomeMachine.redraw_noise`: each round draws for itself."""

    def skip(self, releases: int) -> None:
        """See `HomeMachine.skip`: rounds whose parameters are out are not gone through again."""
        self.node.round += releases

    def begin_fold(self, journaled: NDArray[np.int8] | None = None, adopting: bool = False) -> HomeFold:
        return GossipFold(self, journaled, adopting)

    def feed(self) -> None:
        """Know what neighbours have sent after rounds that this node has come to."""
        for other, heard in self.heard.items():
            while heard.waiting and heard.waiting[0][0] < self.node.round:
                self.node.on_parameters(other, *heard.waiting.popleft())

    def noise(self, slot: Rows) -> NDArray[np.int64]:
        """Of what is sent after the round of this slot, int64 (n,)."""
        config, number = self.system.config, self.node.round
        events = self.events.to_bytes(16, "little")
        row = (slot.indices.tobytes(), slot.values.tobytes(), slot.labels.tobytes())
        content = self.key.digest("parameters", events, *row, self.node.dump())
        address = gossip_address(config, self.system.digest, self.nonce, self.epoch.number, self.partition, number)
        address = replace(address, partition=self.partition, content=content)
        return np.asarray(draw_noise(_law(config, number), [self.key], [address], config.records.dimension)[0])


class GossipFold(HomeFold):
    """One batch of a node."""

    def __init__(self, machine: GossipMachine, journaled: NDArray[np.int8] | None, adopting: bool) -> None:
        super().__init__(machine, journaled, adopting)
        self._node = machine

    @property
    def phase_ends(self) -> TopicPartition:
        return ("parameters", self._node.partition)

    def on_broadcast(self, part: InputSlice) -> None:
        """See `HomeFold.on_broadcast`: parameters of a neighbour, and the ends of its phases; anything else is none."""
        heard = self._node.heard[part.partition]
        for one in part.records:
            try:
                name, fields = codec.decode(one.value, _KINDS)
            except CodecError:
                continue
            if fields["config_digest"] != self._node.system.digest:
                continue
            if name == "Seal":
                heard.phase = max(heard.phase, fields["phase"])
            elif name == "Parameters" and self._new(heard, fields):
                heard.waiting.append((fields["after"], _values(fields["values"])))
                self.counts[PdolOutcome.PARAMETERS] += 1
        heard.position = part.high

    def _new(self, heard: Neighbour, fields: Mapping[str, Any]) -> bool:
        """Whether parameters are of this deployment's size, and of a later round than those that wait."""
        right = len(fields["values"]) == 8 * self._node.system.config.records.dimension
        return right and (not heard.waiting or fields["after"] > heard.waiting[-1][0])

    def prepare(self, slots: Slots) -> None:
        """See `HomeFold.prepare`: parameters change with each round, so nothing can be said beforehand."""

    def predict(self, slots: Slots, place: int) -> tuple[int, bytes]:
        """See `HomeFold.predict`: at the node's own parameters, or those that it sent."""
        row = slots.rows.part(place, place + 1)
        weights = self._node.node.weights()[row.indices]
        return (1 if sums_by_row(weights * row.values, row.indptr)[0] > 0 else -1), b""

    def take(self, slot: Slot) -> None:
        """See `HomeFold.take`: a round, as long as there are any."""
        machine, gossip = self._node, require_gossip(self._node.system.config)
        if self._adopting or machine.node.round > gossip.rounds:
            return
        asked = self.charge()
        machine.feed()
        rows, after = labelled([slot]), machine.node.round
        sent = machine.node.step(rows, machine.noise(rows))[1]
        release_id = self.release_id(after)
        fields = self._fields(release_id, after, sent)
        place = self.phase_ends
        self.released(asked, release_id, Output(*place, machine.chain.encode("Parameters", fields)))

    def _fields(self, release_id: bytes, after: int, sent: NDArray[np.int64]) -> dict[str, Any]:
        machine = self._node
        price = machine.system.guarantee().price
        return {
            "release_id": release_id,
            "config_digest": machine.system.digest,
            "node": machine.partition,
            "epoch": machine.epoch.number,
            "after": after,
            "values": sent.astype("<i8").tobytes(),
            "epsilon_micro": price.epsilon_micro,
            "delta_units": delta_to_bytes(price.delta_units),
            "private_as_stated": machine.system.as_stated(machine.key.reproducible),
        }


def _values(packed: bytes) -> NDArray[np.int64]:
    return np.frombuffer(packed, "<i8").astype(np.int64)


def _dumped(other: int, heard: Neighbour) -> dict[str, Any]:
    waiting = [{"after": after, "values": values.astype("<i8").tobytes()} for after, values in heard.waiting]
    return {"node": other, "position": heard.position, "phase": heard.phase, "waiting": waiting}
