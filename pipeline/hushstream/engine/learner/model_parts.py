"""Models that are larger than a record: their journal record is on one topic, their arrays are in parts on another.

A learner reads both topics completely. It uses a version when the record and all parts have arrived, in any order;
until then it uses the version before. A newer version replaces one that still waits. So an incomplete set is never
used, and delays nothing.

*Models.* Reading a track of published models by the chain rule.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from hushstream.engine.journal.chain import (
    DIGEST_BYTES,
    AlteredGenesis,
    Chain,
    Identity,
    OtherRelease,
    PublicDigester,
    UnknownRecord,
)
from hushstream.engine.journal.notes import read_without_key
from hushstream.engine.records import MODEL_PARTS, PART, InputRecord, InputSlice, OffChain, TopicPartition
from hushstream.engine.release_parts import BadPart, PartSets, packed, unpacked
from hushstream.engine.system import Core, DeploymentValues
from hushstream.schemas import codec
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
            OtherRelease: see `Chain.read`; a skipped model would be missing in every later decision.
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
        except OtherRelease as error:
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


CONTENT = "content"
"""Name of the joined parts among the fields of a model's record."""

_KEPT = 2
"""Number of sets that are kept, complete or not, until the record comes that names them: the newest and the one
before."""

_PLACE = struct.Struct("<qq")
_TIME = struct.Struct("<q")


class Version(NamedTuple):
    """A record of a model on its chain, and its log time."""

    log_time_ms: int
    record: OnChain


class PartReader:
    """Follows the parts of one track of models, and joins them to their records.

    Attributes:
        topic: the topic of parts.
        position: the next offset to read.
    """

    def __init__(self, track: int, config_digest: bytes) -> None:
        """Begin before the first part of a track of this deployment."""
        self.topic: TopicPartition = (MODEL_PARTS, track)
        self.position = 0
        self._config_digest = config_digest
        self._latest_ms = 0
        self._sets = PartSets(_KEPT)
        self._whole: dict[bytes, tuple[int, bytes]] = {}
        self._waiting: Version | None = None

    def joined(self, versions: Iterable[Version], part: InputSlice) -> Iterator[Version]:
        """The versions that are complete now, with the joined parts among their fields (`CONTENT`).

        Args:
            versions: new versions on the chain since the last call, in order.
            part: the next slice of the topic of parts.
        """
        self._read(part)
        waiting = () if self._waiting is None else (self._waiting,)
        for version in (*waiting, *versions):
            fields = version.record.fields
            found = self._whole.get(bytes(fields["whole"]))
            if found is None:
                self._waiting = version
                continue
            self._waiting = None
            self._latest_ms = max(self._latest_ms, version.log_time_ms, found[0])
            yield Version(self._latest_ms, version.record._replace(fields={**fields, CONTENT: found[1]}))

    def dump(self) -> bytes:
        """Position, parts, and versions that wait for parts, for a snapshot."""
        waiting = b""
        if self._waiting is not None:
            log_time_ms, record = self._waiting
            waiting = _PLACE.pack(log_time_ms, record.offset) + record.value
        whole = packed([digest + _TIME.pack(ms) + content for digest, (ms, content) in self._whole.items()])
        return packed([_PLACE.pack(self.position, self._latest_ms), waiting, whole, self._sets.dump()])

    def load(self, dumped: bytes) -> None:
        """Restore what `dump` gave."""
        place, waiting, whole, sets = unpacked(dumped)
        self.position, self._latest_ms = _PLACE.unpack(place)
        self._waiting = None
        if waiting:
            log_time_ms, offset = _PLACE.unpack_from(waiting)
            value = waiting[_PLACE.size :]
            self._waiting = Version(log_time_ms, OnChain(offset, value, codec.decode(value)[1]))
        self._whole = {}
        for one in unpacked(whole):
            begin = DIGEST_BYTES + _TIME.size
            self._whole[one[:DIGEST_BYTES]] = (*_TIME.unpack_from(one, DIGEST_BYTES), one[begin:])
        self._sets.load(sets)

    def _read(self, part: InputSlice) -> None:
        for record in part.records:
            # As with models, all other records are skipped. Parts count only for the set that a model record names.
            with suppress(CodecError, BadPart):
                _, fields = codec.decode(record.value, frozenset({PART}))
                if fields["config_digest"] == self._config_digest:
                    self._take(fields, record.timestamp_ms)
        self.position = part.high

    def _take(self, fields: Mapping[str, Any], log_time_ms: int) -> None:
        content = self._sets.take(fields).content
        if content is None:
            return
        whole = bytes(fields["whole"])
        # A set that is sent again is the newest one again.
        self._whole.pop(whole, None)
        self._whole[whole] = (log_time_ms, content)
        for oldest in list(self._whole)[:-_KEPT]:
            del self._whole[oldest]
