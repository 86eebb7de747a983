"""The chain of a journal: genesis, sequence, input ranges, digests, and the rule by which records count.

A journal record counts only if its sequence number and the lows of its ranges continue the reader's
watermark, and its chain digest continues the previous one. Everything else (an append by a worker that had
lost its partition, a repeated send, bytes of anybody who may write the topic) is skipped by every reader alike.

A record of an unknown schema counts, too, if it is closed as the next record of the chain is: its last bytes are the
digest of all before them behind the last record, whatever they say. Then a newer release wrote it, and a reader stops
(`NewerJournal`): without it nothing that follows continues. Any other cannot be of the chain, in no release, and is
skipped like the rest (`UnknownRecord`): so a record that somebody else put into the topic ends nobody.

The chain digest is keyed with the zone's key, so that nobody without it can make a record that fits, nor
learn private content from it (PRIVACY rule 10). The aggregator has no key; its journal holds public values only.

The chain begins at the version of the noise (`hushstream.privacy.mechanisms.noise.VERSION`): under another version a
replay would give other releases than the journal says, so a journal that was begun under one is refused, in words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hushstream.engine.journal.digests import DIGEST_BYTES, Digester
from hushstream.engine.records import (
    InputRange,
    JournalEntry,
    OffChain,
    TopicPartition,
)
from hushstream.privacy.mechanisms.noise import VERSION as NOISE_VERSION
from hushstream.schemas import codec
from hushstream.schemas.catalogue import FIRST_GENERATION
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason

CHAIN_BYTES = DIGEST_BYTES
"""Every journal record ends with its chain digest (a fixed16, the last field of its schema)."""

CHAIN_STATE = {
    "type": "record",
    "name": "Chain",
    "fields": [
        {"name": "sequence", "type": "long"},
        {"name": "digest", "type": "bytes"},
        {"name": "nonce", "type": "bytes"},
    ],
}
"""Avro schema of `Chain.dump`, for snapshots."""

IF_INTENDED = (
    "restore the topics, or, if that was intended, begin a deployment under another name, as what was released stands "
    "(on the embedded broker: `hushstream dev reset`)"
)
"""What to do where topics are not those that a state continues."""

_BLANK = bytes(CHAIN_BYTES)


def _beginning(version: int) -> bytes:
    """What the first record's digest continues: the version of the noise, counted from the first one."""
    return (version - 1).to_bytes(CHAIN_BYTES, "little")


BEGINNING = _beginning(NOISE_VERSION)
"""What the first record of every journal that this release begins continues."""

Encode: TypeAlias = Callable[[str, Mapping[str, Any]], bytes]
"""Writes a record of a schema, in a schema generation that is settled: `Chain.encode`."""


class ForeignJournal(HushstreamError):
    """The journal belongs to another deployment, configuration, role, partition or key."""


class AlteredGenesis(ForeignJournal):
    """A first record whose chain digest does not fit: no journal can begin with it."""


class UnknownRecord(HushstreamError):
    """Bytes of a schema or schema generation that is not known, and that do not continue the chain."""


class NewerJournal(HushstreamError):
    """The journal's next record is one that this release cannot read: a newer one has worked here.

    Attributes:
        offset: of the record; None as long as nobody has said it (`at`).
    """

    def __init__(self, journal: TopicPartition, found: str, offset: int | None = None) -> None:
        """Say in which journal, and what of the record is not known."""
        place = f"{journal[0]}/{journal[1]}" + ("" if offset is None else f" offset {offset}")
        super().__init__(
            f"journal {place}: expected records of schema generations up to {codec.NEWEST_GENERATION}, found {found}, "
            f"and it continues the journal: a newer release has written here; run that one, or a later one"
        )
        self._journal, self._found, self.offset = journal, found, offset

    def at(self, offset: int) -> NewerJournal:
        """The same, of a record at this offset."""
        return NewerJournal(self._journal, self._found, offset)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose journal it is: compared with the genesis record before anything else is read.

    Attributes:
        begun_in: the first schema generation in which a new journal of this role may begin: one whose records an
            earlier release would read otherwise begins where that one stops.
    """

    role: str
    deployment: str
    config_digest: bytes
    journal: TopicPartition
    begun_in: int = FIRST_GENERATION


class Chain:
    """One journal's chain: makes records that continue it, and accepts those that do.

    Attributes:
        digester: digests under the key in force, or without one.
        sequence: number of the last record accepted or made (0 after genesis; -1 before).
        genesis_nonce: the 32 bytes that separate this journal's noise from every other's.
        schema_generation: in which records are written: as the worker was told, and none before that of the journal's
            first record; on replay, that of the journal record (`in_its_generation`).
    """

    def __init__(self, identity: Identity, digester: Digester, schema: str) -> None:
        """Bind to whose journal it is, the digests' key and the schema of the journal's records."""
        self.identity = identity
        self.digester = self._digester_before = digester
        self._schema = schema
        self._digest = _BLANK
        self.sequence = -1
        self.genesis_nonce = b""
        self.schema_generation = FIRST_GENERATION

    @property
    def digest(self) -> bytes:
        """The chain digest of the last record."""
        return self._digest

    def is_last(self, value: bytes) -> bool:
        """Whether a journal record is the last one that was accepted or made: it ends with that one's chain digest."""
        return value[-CHAIN_BYTES:] == self._digest

    def genesis(self, nonce: bytes) -> bytes:
        """Encode the first record of a new journal around 32 fresh ``nonce`` bytes.

        Under a seeded key (an experiment, which says so) the nonce comes from the seed, so that a run can be
        repeated with the same noise. The journal is begun, and gone on with, in the chain's schema generation, or in
        the first one of such journals (`Identity.begun_in`).
        """
        if len(nonce) != 32:
            raise HushstreamError(f"genesis nonce: expected 32 bytes, got {len(nonce)}")
        who = self.identity
        if self.digester.reproducible:
            place = f"{who.deployment}/{who.journal[0]}/{who.journal[1]}".encode()
            nonce = b"".join(self.digester.digest(f"seeded-nonce-{half}", place) for half in (0, 1))
        schema_generation = max(self.schema_generation, who.begun_in)
        fields = {
            "role": who.role,
            "partition": who.journal[1],
            "deployment": who.deployment,
            "config_digest": who.config_digest,
            "key_id": self.digester.key_id,
            "nonce": nonce,
            "reproducible": self.digester.reproducible,
            "edition": schema_generation,
            "chain": _BLANK,
        }
        return self._closed(codec.encode("Genesis", fields, schema_generation), BEGINNING)

    def start(self, value: bytes, retired: Collection[bytes] = ()) -> None:
        """Adopt the genesis record that the journal really holds.

        Args:
            value: the record.
            retired: public ids of destroyed keys. Under one of them the record cannot be checked: only a snapshot,
                which names the same nonce, leads on from it.

        Raises:
            ForeignJournal: it was written by another role, deployment, configuration, partition or key.
            AlteredGenesis: nobody who had the key wrote it.
            NewerJournal: it is of a version or a schema generation that this release does not know.
        """
        _, found = self._decode(value, "Genesis")
        if found["edition"] > codec.NEWEST_GENERATION:
            raise NewerJournal(self.identity.journal, f"schema generation {found['edition']}")
        checkable = found["key_id"] not in retired
        who = self.identity
        expected = {
            "deployment": who.deployment,
            "role": who.role,
            "partition": who.journal[1],
            "config_digest": who.config_digest,
            **({"key_id": self.digester.key_id} if checkable else {}),
        }
        for name, wanted in expected.items():
            if found[name] != wanted:
                raise ForeignJournal(
                    f"journal {who.journal[0]}/{who.journal[1]}: expected {name} {_shown(wanted)}, "
                    f"found {_shown(found[name])}; use the configuration and keys that it was begun with, "
                    f"or a new deployment name"
                )
        if checkable:
            self._require_noise_version(value)
        self._digest = value[-CHAIN_BYTES:]
        self.sequence = 0
        self.genesis_nonce = bytes(found["nonce"])
        # A worker that is told an earlier one would write what the journal's first record rules out.
        self.schema_generation = max(self.schema_generation, found["edition"])

    def _require_noise_version(self, genesis: bytes) -> None:
        """Refuse a first record that is not closed as this release closes one."""
        place = "{}/{}".format(*self.identity.journal)
        closes = [version for version in range(1, NOISE_VERSION + 1) if self._begun_under(genesis, version)]
        if not closes:
            raise AlteredGenesis(f"journal {place}: its first record was altered")
        if closes[0] != NOISE_VERSION:
            raise ForeignJournal(
                f"journal {place}: expected one begun under version {NOISE_VERSION} of the noise, found version "
                f"{closes[0]}, whose releases this one cannot give again; go on with the release that began it, or "
                f"take a new deployment name"
            )

    def _begun_under(self, genesis: bytes, version: int) -> bool:
        return self._closed(genesis, _beginning(version)) == genesis

    def append(self, fields: Mapping[str, Any]) -> bytes:
        """Encode the next record (``fields`` without ``chain``) and advance.

        Raises:
            HushstreamError: its sequence number is not the next one.
        """
        if fields["head"]["sequence"] != self.sequence + 1:
            raise HushstreamError(f"journal: expected sequence {self.sequence + 1}, got {fields['head']['sequence']}")
        value = codec.encode(self._schema, {**fields, "chain": _BLANK}, self.schema_generation)
        value = self._closed(value, self._digest)
        self._digest = value[-CHAIN_BYTES:]
        self.sequence += 1
        return value

    def encode(self, name: str, record: Mapping[str, Any]) -> bytes:
        """Write a record in the chain's schema generation."""
        return codec.encode(name, record, self.schema_generation)

    def written(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of a journal record that the chain's schema generation has."""
        return codec.narrow(self._schema, fields, self.schema_generation)

    def continued_by(self, value: bytes, last: bytes | None = None) -> bool:
        """Whether bytes are closed as the record behind ``last`` is, or as the next one where that is None.

        What they say need not be known. Whoever has no key of the zone meets this by chance alone (2^-128).
        """
        previous = last[-CHAIN_BYTES:] if last is not None else self._digest if self.sequence >= 0 else BEGINNING
        # The key may have been rotated in a fold of which the record is still on its way.
        content, closing = value[:-CHAIN_BYTES], value[-CHAIN_BYTES:]
        keys = (self.digester, self._digester_before)
        return bool(content) and any(key.digest("chain", previous, content) == closing for key in keys)

    def read(self, value: bytes) -> tuple[JournalEntry, dict[str, Any]]:
        """Decode a journal record; this does not check whether it continues the chain.

        Raises:
            NewerJournal: it continues the chain, in a version or a schema generation that this release does not know.
            UnknownRecord: it is of such a one, and does not continue the chain.
            CodecError: it is no journal record.
        """
        name, fields = self._decode(value, self._schema, "Genesis")
        if name == "Genesis":
            return JournalEntry(0, ()), fields
        head = fields["head"]
        if head["edition"] > codec.NEWEST_GENERATION:
            raise self._unknown(value, f"schema generation {head['edition']}")
        ranges = tuple(InputRange(r["topic"], r["partition"], r["low"], r["high"]) for r in head["inputs"])
        key_rotated = any(fields.get("turned_to", b""))
        return JournalEntry(head["sequence"], ranges, head["edition"], head["input_digest"], key_rotated), fields

    def check(self, value: bytes, positions: Mapping[TopicPartition, int]) -> dict[str, Any]:
        """Decode a record read from the journal and judge whether it continues the chain; changes nothing.

        Args:
            value: the journal record.
            positions: the journaled watermark: where the lows of the next record must begin.

        Raises:
            OffChain: sequence, lows or chain digest do not continue.
        """
        entry, fields = self.read(value)
        if entry.sequence != self.sequence + 1:
            raise OffChain(f"expected sequence {self.sequence + 1}, got {entry.sequence}")
        for part in entry.inputs:
            expected = positions.get((part.topic, part.partition), 0)
            if part.low != expected:
                raise OffChain(f"expected {part.topic}/{part.partition} to continue at {expected}, got {part.low}")
        if self._closed(value, self._digest) != value:
            raise OffChain(f"record {entry.sequence} does not continue the chain digest")
        return fields

    def accept(self, value: bytes, positions: Mapping[TopicPartition, int]) -> dict[str, Any]:
        """Move on by a record of the journal, if it continues the chain.

        Raises:
            OffChain: it does not (see `check`); nothing has changed then.
        """
        fields = self.check(value, positions)
        self._digest = value[-CHAIN_BYTES:]
        self.sequence += 1
        return fields

    def rotate_to(self, digester: Digester) -> None:
        """Use another key for the digests of all further records; the last record under the old key announced it."""
        self._digester_before, self.digester = self.digester, digester

    def dump(self) -> dict[str, Any]:
        """The chain's place, for a snapshot."""
        return {"sequence": self.sequence, "digest": self._digest, "nonce": self.genesis_nonce}

    def resume(self, place: Mapping[str, Any]) -> None:
        """Return to a dumped place of the same journal.

        Raises:
            ForeignJournal: the snapshot was made on another journal (another genesis nonce).
        """
        if place["nonce"] != self.genesis_nonce:
            raise ForeignJournal(
                f"snapshot of {self.identity.journal[0]}/{self.identity.journal[1]}: it belongs to another journal "
                f"(the topics were wiped or replaced); {IF_INTENDED}"
            )
        self.sequence = place["sequence"]
        self._digest = bytes(place["digest"])

    def _decode(self, value: bytes, *names: str) -> tuple[str, dict[str, Any]]:
        try:
            return codec.decode(value, frozenset(names))
        except CodecError as error:
            if error.reason is Reason.UNKNOWN_FINGERPRINT:
                raise self._unknown(value, f"schema {codec.fingerprint_of(value).hex()}") from None
            raise

    def _unknown(self, value: bytes, found: str) -> HushstreamError:
        if self.continued_by(value):
            return NewerJournal(self.identity.journal, found)
        return UnknownRecord(f"{found} is not known, and does not continue the journal")

    def _closed(self, value: bytes, previous: bytes) -> bytes:
        content = value[:-CHAIN_BYTES]
        return content + self.digester.digest("chain", previous, content)


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)
