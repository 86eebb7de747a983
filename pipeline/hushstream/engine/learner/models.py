"""Reading a track of published models by the chain rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from hushstream.engine.journal.chain import AlteredGenesis, Chain, Identity, NewerJournal, PublicDigester, UnknownRecord
from hushstream.engine.journal.notes import read_without_key
from hushstream.engine.records import InputRecord, InputSlice, OffChain, TopicPartition
from hushstream.engine.system import Core, DeploymentValues
from hushstream.schemas.codec import CodecError

_NOTED = 256


class OnChain(NamedTuple):
    """A model record on the chain: its position, value and fields."""

    offset: int
    value: bytes
    fields: dict[str, Any]


def aggregator_identity(system: Core[DeploymentValues], track: int) -> Identity:
    """The identity of the journal that holds the models of a track."""
    return Identity.of(system, "aggregator", "models", track)


class ModelReader:
    """Follows one track of models: yields the records on the chain, and skips all others."""

    def __init__(self, system: Core[DeploymentValues], track: int, name: str, schema: str) -> None:
        """Follow ``models/track`` of a deployment under ``name``; its versions are records of ``schema``."""
        self.track = name
        self.topic: TopicPartition = ("models", track)
        self.position = 0
        self.published_ms = 0
        """For gauges, not part of the state: log time of the newest version that was read since the start; 0 before."""
        self.foreign: deque[tuple[int, int]] = deque(maxlen=_NOTED)
        """For gauges: (offset, bytes) of the last records since the start that were skipped, because they are on no
        chain."""
        owner = aggregator_identity(system, track)
        self._owner = (owner.deployment, owner.role, track)
        self._chain = Chain(owner, PublicDigester(), schema)
        self._highs: dict[TopicPartition, int] = {}

    def read(self, part: InputSlice) -> Iterator[OnChain]:
        """Yield the records on the chain in a slice of the models topic.

        Raises:
            ForeignJournal: the track was begun by another deployment or configuration.
            NewerJournal: see `Chain.read`; a skipped model would be missing in every later decision.
        """
        for record in part.records:
            fields = self._accept(record)
            if fields is not None:
                self.published_ms = record.timestamp_ms
                yield OnChain(record.offset, record.value, fields)
        self.position = part.high

    def is_last(self, value: bytes) -> bool:
        """Whether a record is the last one on the chain that was read."""
        return self._chain.sequence > 0 and self._chain.is_last(value)

    def dump(self) -> dict[str, Any]:
        """The reader's position, for a snapshot."""
        highs = [{"topic": t, "partition": p, "high": high} for (t, p), high in self._highs.items()]
        return {"position": self.position, "chain": self._chain.dump(), "highs": highs}

    def load(self, place: dict[str, Any]) -> None:
        """Restore a dumped position."""
        self.position = place["position"]
        self._chain.genesis_nonce = bytes(place["chain"]["nonce"])
        self._chain.resume(place["chain"])
        self._highs = {(h["topic"], h["partition"]): h["high"] for h in place["highs"]}

    def _accept(self, record: InputRecord) -> dict[str, Any] | None:
        try:
            if self._chain.sequence < 0:
                self._chain.start(record.value)
                return None
            fields = self._chain.accept(record.value, self._highs)
        except NewerJournal as error:
            raise error.at(record.offset) from None
        except OffChain:
            return None
        except (CodecError, UnknownRecord, AlteredGenesis):
            # Only the owner of the journal can check and count an operator's note.
            if read_without_key(record.value, *self._owner) is None:
                self.foreign.append((record.offset, len(record.value)))
            return None
        for part in fields["head"]["inputs"]:
            self._highs[part["topic"], part["partition"]] = part["high"]
        return fields
