"""A journal: its genesis, the chain by which its records count, and how a batch is written, replayed and compared.

A journal record counts only if its sequence number and the lows of its ranges continue the reader's watermark, and its
chain digest continues the previous one. Every reader skips all other records: appends by a worker that had lost its
partition, repeated sends, and bytes of anybody else who may write the topic.

A record of an unknown schema counts, too, if its last bytes are the chain digest of all its other bytes behind the last
record. Then another release wrote it, and a reader stops (`OtherRelease`), because nothing that follows continues
without this record. Any other record of an unknown schema is on no release's chain, and is skipped (`UnknownRecord`).
So nobody can stop a reader by writing a record to the topic.

The chain digest is keyed with the zone's key, so nobody without it can make a valid record, or learn private content
from a digest (PRIVACY rule 10). The aggregator has no key; its journal holds public values only.

The chain begins at the version of the noise (`hushstream.privacy.mechanisms.noise.VERSION`): under another version a
replay would give other releases than the journal says. So a journal that was begun under another version is refused.

Every role writes its journal with `Chain.append`, and every replay is compared with `require_same`: the record must
follow from the inputs that it names. If a role allows it, floats may differ by the rounding of another processor.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hushstream.engine.machine import Machine
from hushstream.engine.records import (
    InputRange,
    InputRecord,
    InputSlice,
    JournalEntry,
    OffChain,
    Output,
    ReplayMismatch,
    TopicPartition,
)
from hushstream.engine.state.declared import Declared, Several
from hushstream.engine.system import Core, DeploymentValues
from hushstream.privacy.mechanisms.noise import VERSION as NOISE_VERSION
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import Reason

# Digests of a machine's input and of what it will release, keyed where that is private.

DIGEST_BYTES = 16
"""Size of every digest here."""

START = bytes(DIGEST_BYTES)
"""Start value of a running digest."""


class Digester(Protocol):
    """A digest of 16 bytes over chunks; keyed where the content is private."""

    def digest(self, purpose: str, *chunks: bytes) -> bytes:
        """Digest length-prefixed ``chunks`` for one stated ``purpose``."""

    @property
    def key_id(self) -> bytes:
        """8 bytes that name the key."""

    @property
    def reproducible(self) -> bool:
        """True for keys made from a seed; nothing under them is private."""


class PublicDigester:
    """Digests without a key, for roles that have no key and journal public values only."""

    key_id = bytes(8)
    reproducible = False

    def digest(self, purpose: str, *chunks: bytes) -> bytes:
        """Digest length-prefixed ``chunks``; ``purpose`` separates uses."""
        hasher = hashlib.blake2b(digest_size=DIGEST_BYTES, person=purpose.encode()[:16])
        for chunk in chunks:
            hasher.update(len(chunk).to_bytes(8, "little"))
            hasher.update(chunk)
        return hasher.digest()


def digest_records(digester: Digester, slices: Iterable[InputSlice]) -> bytes:
    """Digest input slices: names, ranges, offsets, log times and values (16 bytes, order-sensitive)."""
    chunks: list[bytes] = []
    for part in slices:
        records = part.records
        n = len(records)
        chunks.append(f"{part.topic}/{part.partition}/{part.low}/{part.high}".encode())
        if not n:
            chunks += (b"", b"", b"", b"")
            continue
        offsets, times_ms, values = zip(*records, strict=True)
        pack = struct.Struct(f"<{n}q").pack
        chunks += (pack(*offsets), pack(*times_ms), pack(*map(len, values)), b"".join(values))
    return digester.digest("input", *chunks)


def running_digest(digester: Digester, records: Iterable[InputRecord], running: bytes = START) -> bytes:
    """Continue a digest record by record, so that batch boundaries do not matter.

    Args:
        digester: keyed if the records are private.
        records: in order.
        running: digest of the records before them, from the start of a journal record's range.
    """
    for record in records:
        place = struct.pack("<qq", record.offset, record.timestamp_ms)
        running = digester.digest("running", running, place, record.value)
    return running


# The chain.

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
    "(an embedded broker keeps topics only with `--data`)"
)
"""What an operator can do if the topics do not belong to a state."""

_BLANK = bytes(CHAIN_BYTES)


def _beginning(version: int) -> bytes:
    """The value that the first record's digest continues: a digest of the version of the noise."""
    return (version - 1).to_bytes(CHAIN_BYTES, "little")


BEGINNING = _beginning(NOISE_VERSION)
"""The value that the first record of a new journal continues."""


class ForeignJournal(HushstreamError):
    """The journal belongs to another deployment, configuration, role, partition or key."""


class AlteredGenesis(ForeignJournal):
    """A first record with a wrong chain digest: no journal begins with it."""


class UnknownRecord(HushstreamError):
    """Bytes of an unknown schema that do not continue the chain."""


class OtherRelease(HushstreamError):
    """The journal's next record was written by another release, and this one cannot read it.

    Attributes:
        offset: of the record; None until `at` has set it.
    """

    def __init__(self, journal: TopicPartition, found: str, offset: int | None = None) -> None:
        """Name the journal, and the record's schema, by its fingerprint."""
        place = f"{journal[0]}/{journal[1]}" + ("" if offset is None else f" offset {offset}")
        super().__init__(
            f"journal {place}: expected records of this release's schemas, found {found}, and it continues the "
            f"journal: another release has written here; run that one"
        )
        self._journal, self._found, self.offset = journal, found, offset

    def at(self, offset: int) -> OtherRelease:
        """The same error with the offset of the record."""
        return OtherRelease(self._journal, self._found, offset)


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a journal. It is compared with the genesis record before anything else is read."""

    role: str
    deployment: str
    config_digest: bytes
    journal: TopicPartition

    @classmethod
    def of(cls, system: Core[DeploymentValues], role: str, topic: str, partition: int) -> Identity:
        """The identity of a role's journal in one partition of a deployment."""
        return cls(role, system.config.deployment, system.digest, (topic, partition))


class Chain:
    """One journal's chain: makes records that continue it, and accepts those that do.

    Attributes:
        digester: digests under the key in force, or without one.
        sequence: number of the last record accepted or made (0 after genesis; -1 before).
        genesis_nonce: the 32 bytes that separate this journal's noise from every other's.
    """

    def __init__(self, identity: Identity, digester: Digester, schema: str) -> None:
        """Begin before the genesis record of a journal."""
        self.identity = identity
        self.digester = self._digester_before = digester
        self._schema = schema
        self._read: tuple[bytes | None, JournalEntry, dict[str, Any]] = (None, JournalEntry(0, ()), {})
        """The record that was read last: a replay asks for its ranges before it follows it."""
        self._digest = _BLANK
        self.sequence = -1
        self.genesis_nonce = b""

    @property
    def digest(self) -> bytes:
        """The chain digest of the last record."""
        return self._digest

    def is_last(self, value: bytes) -> bool:
        """Whether a journal record is the last one that was accepted or made, by its chain digest."""
        return value[-CHAIN_BYTES:] == self._digest

    def genesis(self, nonce: bytes) -> bytes:
        """Encode the first record of a new journal around 32 fresh ``nonce`` bytes.

        Under a seeded key (of an experiment that says so) the nonce comes from the seed, so that a run can be repeated
        with the same noise.
        """
        if len(nonce) != 32:
            raise HushstreamError(f"genesis nonce: expected 32 bytes, got {len(nonce)}")
        who = self.identity
        if self.digester.reproducible:
            place = f"{who.deployment}/{who.journal[0]}/{who.journal[1]}".encode()
            nonce = b"".join(self.digester.digest(f"seeded-nonce-{half}", place) for half in (0, 1))
        fields = {
            "role": who.role,
            "partition": who.journal[1],
            "deployment": who.deployment,
            "config_digest": who.config_digest,
            "key_id": self.digester.key_id,
            "nonce": nonce,
            "reproducible": self.digester.reproducible,
            "chain": _BLANK,
        }
        return self._closed(codec.encode("Genesis", fields), BEGINNING)

    def start(self, value: bytes, retired: Collection[bytes] = ()) -> None:
        """Adopt the genesis record that the journal holds.

        Args:
            value: the record.
            retired: public ids of destroyed keys. A record under one of them cannot be checked: only a snapshot with
                the same nonce can continue it.

        Raises:
            ForeignJournal: it was written by another role, deployment, configuration, partition or key.
            AlteredGenesis: it was not written with the zone's key.
            OtherRelease: this release does not know its schema.
        """
        _, found = self._decode(value, "Genesis")
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
                    f"found {_shown(found[name])}; use the configuration and keys with which it was begun, "
                    f"or a new deployment name"
                )
        if checkable:
            self._require_noise_version(value)
        self._digest = value[-CHAIN_BYTES:]
        self.sequence = 0
        self.genesis_nonce = bytes(found["nonce"])

    def _require_noise_version(self, genesis: bytes) -> None:
        """Refuse a first record whose chain digest is not that of this release."""
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
        content = codec.encode(self._schema, {**fields, "chain": _BLANK})[:-CHAIN_BYTES]
        self._digest = self.digester.digest("chain", self._digest, content)
        self.sequence += 1
        return content + self._digest

    def continued_by(self, value: bytes, last: bytes | None = None) -> bool:
        """Whether bytes end with the chain digest of the record behind ``last``, or of the next record if that is None.

        The bytes need not be readable. Without the zone's key they pass by chance alone (2^-128).
        """
        previous = last[-CHAIN_BYTES:] if last is not None else self._digest if self.sequence >= 0 else BEGINNING
        # The key may have been rotated in a fold whose record is not in the journal yet.
        content, closing = value[:-CHAIN_BYTES], value[-CHAIN_BYTES:]
        keys = (self.digester, self._digester_before)
        return bool(content) and any(key.digest("chain", previous, content) == closing for key in keys)

    def read(self, value: bytes) -> tuple[JournalEntry, dict[str, Any]]:
        """Decode a journal record; this does not check whether it continues the chain.

        Raises:
            OtherRelease: it continues the chain, and this release does not know its schema.
            UnknownRecord: the same of a record that does not continue the chain.
            CodecError: it is no journal record.
        """
        if value != self._read[0]:
            name, fields = self._decode(value, self._schema, "Genesis")
            entry = JournalEntry(0, ())
            if name != "Genesis":
                head = fields["head"]
                ranges = tuple(InputRange(r["topic"], r["partition"], r["low"], r["high"]) for r in head["inputs"])
                key_rotated = any(fields.get("turned_to", b""))
                entry = JournalEntry(head["sequence"], ranges, head["input_digest"], key_rotated)
            self._read = value, entry, fields
        return self._read[1:]

    def check(self, value: bytes, positions: Mapping[TopicPartition, int]) -> dict[str, Any]:
        """Decode a record read from the journal and judge whether it continues the chain; changes nothing.

        Args:
            value: the journal record.
            positions: the journaled watermark: the next record's ranges must begin there.

        Raises:
            OffChain: sequence number, lows or chain digest do not continue.
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
        """Advance by a record of the journal, if it continues the chain.

        Raises:
            OffChain: it does not (see `check`); nothing is changed.
        """
        fields = self.check(value, positions)
        self._digest = value[-CHAIN_BYTES:]
        self.sequence += 1
        return fields

    def advance(self, value: bytes) -> None:
        """Advance by a record that `check` has accepted."""
        self._digest = value[-CHAIN_BYTES:]
        self.sequence += 1

    def rotate_to(self, digester: Digester) -> None:
        """Use another key for the digests of all further records.

        The last record under the old key has announced it.
        """
        self._digester_before, self.digester = self.digester, digester

    def dump(self) -> dict[str, Any]:
        """The chain's position, for a snapshot."""
        return {"sequence": self.sequence, "digest": self._digest, "nonce": self.genesis_nonce}

    def resume(self, place: Mapping[str, Any]) -> None:
        """Restore a dumped position of the same journal.

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
            return OtherRelease(self.identity.journal, found)
        return UnknownRecord(f"{found} is not known, and does not continue the journal")

    def _closed(self, value: bytes, previous: bytes) -> bytes:
        content = value[:-CHAIN_BYTES]
        return content + self.digester.digest("chain", previous, content)


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)


# One journal record: which input it covers, how it is written, and how a replay compares.


@dataclass(frozen=True, slots=True)
class Rounding:
    """The fields of a record that may differ by a rounding. The journaled values then count.

    Attributes:
        floats: numbers and packed arrays of them, by field, with their numpy types.
        margin: largest relative and absolute difference.
        digests: fields that are digests of such arrays and differ with them.
    """

    floats: Mapping[str, str] = field(default_factory=dict)
    margin: float = 0.0
    digests: tuple[str, ...] = ()

    def allows(self, name: str, again: Any, journaled: Any) -> bool:
        """Whether two values of a field count as equal."""
        if name in self.digests:
            return True
        if name not in self.floats:
            return False
        ours, theirs = (_array(value, self.floats[name]) for value in (again, journaled))
        return ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=self.margin, atol=self.margin)


EXACT = Rounding()
"""Rounding of a role whose records must be equal."""


def covered(positions: Mapping[TopicPartition, int], slices: Sequence[InputSlice]) -> dict[TopicPartition, InputSlice]:
    """One slice for every input, also empty ones, in a fixed order.

    So a journal record names the whole watermark, and a reader without the key can see from its lows whether it
    continues the records before.
    """
    given = {(part.topic, part.partition): part for part in slices}
    return {
        place: given.get(place) or InputSlice(*place, low=position, high=position, records=())
        for place, position in sorted(positions.items())
    }


def record_of(
    chain: Chain,
    inputs: Iterable[InputRange | InputSlice],
    input_digest: bytes,
    fields: Mapping[str, Any],
    outputs: Sequence[Output] = (),
    epoch: int = 0,
) -> dict[str, Any]:
    """The fields of the next journal record.

    Args:
        chain: of the journal.
        inputs: what the record covers.
        input_digest: of the records in it (16 bytes).
        fields: of the record, without its head.
        outputs: what is sent after the record was acknowledged, in order.
        epoch: epoch of the noise.
    """
    released: list[bytes] = []
    for output in outputs:
        released += (f"{output.topic}/{output.partition}".encode(), output.value)
    head = {
        "sequence": chain.sequence + 1,
        "epoch": epoch,
        "inputs": [dict(zip(InputRange._fields, part, strict=False)) for part in inputs],
        "input_digest": input_digest,
        "release_digest": chain.digester.digest("release", *released),
    }
    return {"head": head, **fields}


class Replayed:
    """A journal record in a replay.

    Attributes:
        fields: what it holds.
    """

    def __init__(self, chain: Chain, value: bytes, positions: Mapping[TopicPartition, int]) -> None:
        """Begin the replay of the record ``value``; its ranges must begin at the journaled watermark ``positions``.

        Raises:
            OffChain: the record does not continue the chain.
        """
        self.fields = chain.check(value, positions)
        self._chain = chain
        self._value: bytes | None = value

    def follow(self, again: Mapping[str, Any], rounding: Rounding = EXACT) -> bytes:
        """Advance by the record if its inputs give the same one ``again`` (`record_of`); returns the record.

        Raises:
            ReplayMismatch: it does not, or the record has been followed before; the chain is unchanged.
        """
        value = self._value
        if value is None:
            raise _mismatch(self._chain, self.fields, "end")
        require_same(self._chain, again, self.fields, rounding)
        self._chain.advance(value)
        self._value = None
        return value

    def require_followed(self) -> None:
        """Refuse to end a replay that has not given the record.

        Raises:
            ReplayMismatch: it has not.
        """
        if self._value is not None:
            raise _mismatch(self._chain, self.fields, "end")


def require_same(
    chain: Chain, again: Mapping[str, Any], journaled: Mapping[str, Any], rounding: Rounding = EXACT
) -> None:
    """Compare the result of a replay with the fields of the journal record.

    Raises:
        ReplayMismatch: a field differs by more than an allowed rounding.
    """
    ours, theirs = _flat(again), _flat(journaled)
    for name in ours:
        if ours[name] != theirs[name] and not rounding.allows(name, ours[name], theirs[name]):
            raise _mismatch(chain, journaled, name)


def _mismatch(chain: Chain, journaled: Mapping[str, Any], name: str) -> ReplayMismatch:
    topic, partition = chain.identity.journal
    sequence = journaled["head"]["sequence"]
    return ReplayMismatch(
        f"{topic}/{partition} record {sequence}: its inputs give another record ({name} differs); nothing is sent"
    )


def _flat(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**fields["head"], **{name: value for name, value in fields.items() if name != "head"}}


def _array(value: Any, kind: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(value, kind) if isinstance(value, bytes) else np.array([value], kind)


OWNER = {"deployment": "string", "config_digest": "bytes", "partition": "int", "chain": CHAIN_STATE}
"""Avro fields: owner of the state, and position of its journal."""


class Owner(Protocol):
    """The attributes of a machine that its state names."""

    chain: Chain

    @property
    def system(self) -> Core[DeploymentValues]:
        """The deployment."""

    @property
    def journal(self) -> TopicPartition: ...


def dump_owner(machine: Owner) -> dict[str, Any]:
    """The values of `OWNER`."""
    return {
        "deployment": machine.system.config.deployment,
        "config_digest": machine.system.digest,
        "partition": machine.journal[1],
        "chain": machine.chain.dump(),
    }


def restore_owner(machine: Owner, state: dict[str, Any]) -> None:
    """Restore a dumped position of the journal.

    Raises:
        HushstreamError: the state belongs to another partition, deployment or configuration.
        ForeignJournal: it was made on another journal.
    """
    found = (state["partition"], state["deployment"], state["config_digest"].hex())
    expected = (machine.journal[1], machine.system.config.deployment, machine.system.digest.hex())
    if found != expected:
        raise HushstreamError(f"snapshot: expected partition, deployment and configuration {expected}, got {found}")
    machine.chain.resume(state["chain"])


def owner() -> Several:
    """State field: owner and position of the journal (deployment, configuration, partition, chain)."""
    return Several(OWNER, dump_owner, lambda role, values: restore_owner(role, dict(values)), saved=False)


class ChainedMachine(Declared, Machine):
    """The methods of `Machine` that depend on the journal's chain and the declared state alone.

    Attributes:
        chain: of the journal.
        state: the declared state.
    """

    chain: Chain

    def is_last(self, value: bytes) -> bool:
        return self.chain.is_last(value)

    def genesis(self, nonce: bytes) -> bytes:
        return self.chain.genesis(nonce)

    def start(self, genesis: bytes) -> None:
        self.chain.start(genesis)

    def entry(self, value: bytes) -> JournalEntry:
        return self.chain.read(value)[0]

    def continues(self, value: bytes, last: bytes) -> bool:
        return self.chain.continued_by(value, last)

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        return tuple(part for part in self.entry(value).inputs if part.high > part.low)
