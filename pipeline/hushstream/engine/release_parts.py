"""Releases that are larger than a record: they are sent in parts under one journal record.

* The writer draws, charges and journals the release once. The parts are ordinary outputs of that journal record: its
  ``release_digest`` covers them in order (or the record holds the digest of the joined content). So recovery and
  `verify` compare the whole release, and after a crash between two parts all of them are sent again.
* A reader acts when all parts of a set have arrived, in any order and with any repeats. A set is named by the digest of
  its joined content, so no part of another release can complete it. An incomplete set is never used.
* Privacy does not change: there is one release, one debit and one entry in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hushstream.engine.journal.chain import PublicDigester
from hushstream.engine.records import PART
from hushstream.engine.values import MAX_RECORD_BYTES
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError

WHOLE_BYTES = MAX_RECORD_BYTES - 4096
"""Largest content of a release in one record, besides its other fields. A larger release is sent in parts of at most
this size."""

MOST_PARTS = 16
"""Largest number of parts of one release, because a reader holds some complete sets in memory."""

MOST_BYTES = MOST_PARTS * WHOLE_BYTES - 4096
"""Largest size of the arrays of one release."""

_LENGTH_BYTES = 4


class BadPart(HushstreamError):
    """A part that fits no release."""


class Taken(NamedTuple):
    """The result of taking a part.

    Attributes:
        content: the joined content, if this was the last missing part; else None.
        gave_up: number of incomplete sets that were dropped.
    """

    content: bytes | None
    gave_up: int


def parts_needed(size: int) -> int:
    """Number of parts of a release whose arrays have ``size`` bytes; 1 if it fits one record."""
    return max(1, -(-size // WHOLE_BYTES))


def whole_digest(content: bytes) -> bytes:
    """The name of a set: a digest of 16 bytes. Releases are public, so it needs no key."""
    return PublicDigester().digest("release-whole", content)


def parts_of(content: bytes, config_digest: bytes) -> list[bytes]:
    """The records of a release, in the order in which they are sent.

    Args:
        content: the joined content.
        config_digest: of the deployment.
    """
    whole, pieces = (
        whole_digest(content),
        [content[at : at + WHOLE_BYTES] for at in range(0, len(content), WHOLE_BYTES)],
    )
    named = {"config_digest": config_digest, "whole": whole, "parts": len(pieces)}
    return [codec.encode(PART, {**named, "part": part, "content": piece}) for part, piece in enumerate(pieces)]


def parts_of_record(name: str, fields: Mapping[str, Any], config_digest: bytes) -> list[bytes]:
    """Split a record that is too large into parts; `record_of` joins them."""
    return parts_of(codec.encode(name, fields, most=MOST_PARTS * WHOLE_BYTES), config_digest)


def record_of(content: bytes, name: str) -> dict[str, Any]:
    """Join the parts of a record, and decode it.

    Raises:
        BadPart: the joined record has another schema.
    """
    try:
        return codec.decode(content, frozenset({name}), most=MOST_PARTS * WHOLE_BYTES)[1]
    except CodecError:
        raise BadPart(f"part: expected parts of {name}, got others") from None


class PartSets:
    """The incomplete sets of parts at one reader."""

    def __init__(self, most: int) -> None:
        """Begin with none.

        Args:
            most: largest number of incomplete sets; the one that got a part least recently is dropped. A writer sends
                one set at a time, so further sets of a writer were never finished.
        """
        self._most = most
        self._open: dict[bytes, list[Mapping[str, Any] | None]] = {}

    def take(self, fields: Mapping[str, Any]) -> Taken:
        """Take one part; a repeated one changes nothing.

        Args:
            fields: of a ``ReleasePart`` record.

        Raises:
            BadPart: its numbers are impossible or differ from those of its set, or the set does not join to the content
                that names it, and is dropped.
        """
        whole, part, count = bytes(fields["whole"]), fields["part"], fields["parts"]
        if not 2 <= count <= MOST_PARTS or not 0 <= part < count:
            raise BadPart(f"part: expected a number below a count from 2 to {MOST_PARTS}, got {part} of {count}")
        held = self._open.pop(whole, None) or [None] * count
        self._open[whole] = held
        if len(held) != count:
            raise BadPart(f"part: expected one of {len(held)}, as the others of its set say, got one of {count}")
        if held[part] is None:
            held[part] = dict(fields)
        if all(one is not None for one in held):
            del self._open[whole]
            content = b"".join(one["content"] for one in held if one is not None)
            if whole_digest(content) != whole:
                raise BadPart("part: expected a set that joins to the content that names it, got another content")
            return Taken(content, 0)
        late = list(self._open)[: max(0, len(self._open) - self._most)]
        for one in late:
            del self._open[one]
        return Taken(None, len(late))

    def dump(self) -> bytes:
        """The incomplete sets, packed for a snapshot."""
        held = [one for some in self._open.values() for one in some if one is not None]
        return packed([codec.encode(PART, one) for one in held])

    def load(self, dumped: bytes) -> None:
        """Restore what `dump` gave.

        Raises:
            HushstreamError: not such bytes.
        """
        self._open.clear()
        try:
            for value in unpacked(dumped):
                self.take(codec.decode(value, frozenset({PART}))[1])
        except CodecError:
            raise HushstreamError("snapshot: expected parts of releases, got other bytes") from None


def packed(values: Sequence[bytes]) -> bytes:
    """Join byte strings, each after its length."""
    return b"".join(len(value).to_bytes(_LENGTH_BYTES, "little") + value for value in values)


def unpacked(dumped: bytes) -> list[bytes]:
    """Split what `packed` joined.

    Raises:
        HushstreamError: not such bytes.
    """
    values, at = [], 0
    while at < len(dumped):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(dumped[at:begin], "little")
        if at > len(dumped):
            raise HushstreamError("snapshot: expected byte strings with their lengths, got other bytes")
        values.append(dumped[begin:at])
    return values
