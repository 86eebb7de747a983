"""Reading a line of published models by the chain rule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.roles.chain import Chain, Identity, PublicDigester
from hushstream.roles.machine import InputSlice, OffChain, TopicPartition
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b import LINES, P2BSystem
from hushstream.systems.system import System


class OnChain(NamedTuple):
    """A Model record that counts: where it lies, its value, and its fields."""

    offset: int
    value: bytes
    fields: dict[str, Any]


class PublishedModel(NamedTuple):
    """One version: gram (K, D, D), or (K, D) for one-hot features, and moment (K, D), float64."""

    version: int
    gram: NDArray[np.float64]
    moment: NDArray[np.float64]


def aggregator_identity(system: System, line: int) -> Identity:
    """Whose journal the models of a line are."""
    return Identity("aggregator", system.config.deployment, system.digest, ("models", line))


class ModelReader:
    """Follows one line: yields the records on the chain, skips whatever else lies in the log."""

    def __init__(self, system: System, line: int, schema: str = "Model") -> None:
        """Follow ``models/line`` of a deployment, whose versions are records of ``schema``."""
        self.line = LINES[line]
        self.topic: TopicPartition = ("models", line)
        self.position = 0
        self.published_ms = 0
        """Log time of the newest version; 0 before the first (not part of the state: for gauges only)."""
        self._chain = Chain(aggregator_identity(system, line), PublicDigester(), schema)
        self._highs: dict[TopicPartition, int] = {}

    def read(self, part: InputSlice) -> Iterator[OnChain]:
        """Yield the records on the chain in a slice of the models topic; `decode_model` says what they hold.

        Raises:
            ForeignJournal: the line was begun by another deployment or configuration.
            NewerJournal: see `Chain.read`; a model that was passed over would be missed in every later decision.
        """
        for record in part.records:
            fields = self._accept(record.value)
            if fields is not None:
                self.published_ms = record.timestamp_ms
                yield OnChain(record.offset, record.value, fields)
        self.position = part.high

    def dump(self) -> dict[str, Any]:
        """The reader's place, for a snapshot."""
        highs = [{"topic": t, "partition": p, "high": high} for (t, p), high in self._highs.items()]
        return {"position": self.position, "chain": self._chain.dump(), "highs": highs}

    def resume(self, place: dict[str, Any]) -> None:
        """Return to a dumped place."""
        self.position = place["position"]
        self._chain.genesis_nonce = bytes(place["chain"]["nonce"])
        self._chain.resume(place["chain"])
        self._highs = {(h["topic"], h["partition"]): h["high"] for h in place["highs"]}

    def _accept(self, value: bytes) -> dict[str, Any] | None:
        try:
            if self._chain.sequence < 0:
                self._chain.start(value)
                return None
            fields = self._chain.accept(value, self._highs)
        except (OffChain, CodecError):
            return None
        for part in fields["head"]["inputs"]:
            self._highs[part["topic"], part["partition"]] = part["high"]
        return fields


def decode_model(system: P2BSystem, fields: dict[str, Any]) -> PublishedModel:
    """The arrays of a Model record.

    Raises:
        HushstreamError: it is not of the deployment's arms and dimension, or its arrays are not.
    """
    arms, dimension = system.config.arms, system.model_dimension
    onehot = system.config.encoder.features == "onehot"
    shape = (arms, dimension) if onehot else (arms, dimension, dimension)
    found = (fields["arms"], fields["dimension"], fields["features"] == "onehot")
    if found != (arms, dimension, onehot):
        raise HushstreamError(f"model: expected arms, dimension, one-hot {(arms, dimension, onehot)}, got {found}")
    gram, moment = fields["gram"], fields["moment"]
    sizes = (8 * math.prod(shape), 8 * arms * dimension)
    if (len(gram), len(moment)) != sizes:
        raise HushstreamError(f"model: expected sums of {sizes} bytes, got {(len(gram), len(moment))}")
    return PublishedModel(
        fields["version"],
        np.frombuffer(gram, "<f8").reshape(shape).astype(np.float64),
        np.frombuffer(moment, "<f8").reshape(arms, dimension).astype(np.float64),
    )
