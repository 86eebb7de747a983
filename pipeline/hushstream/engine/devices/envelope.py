"""A model as it travels to devices: a statement of it, its signature, the deployment's keys, and the content.

The same bytes go to everybody. Whoever serves them holds no key that signs, and can keep a version back for as long as
the one before it has not expired; a device that has seen a version takes no older one.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Protocol, Self

from hushstream.engine.devices.errors import BadModel, BadSeal
from hushstream.engine.devices.recipients import VOUCH_KEY_BYTES, Recipient, Recipients
from hushstream.engine.devices.sealing import PUBLIC_KEY_BYTES
from hushstream.engine.devices.signing import PUBLIC_BYTES, SIGNATURE_BYTES, Signer, SigningKey, SigningKeys

FORMAT = 1
MAGIC = b"hushmdl1"
MOST_STATEMENT_BYTES = 65_536
STATEMENT_RECORD = "ModelStatement"

_LENGTH = struct.Struct("<I")
_SIGNING = struct.Struct(f"<{PUBLIC_BYTES}sQ{SIGNATURE_BYTES}s")
_SEALING = struct.Struct(f"<{PUBLIC_KEY_BYTES}s{VOUCH_KEY_BYTES}sq{SIGNATURE_BYTES}s")
_UNSIGNED = bytes(SIGNATURE_BYTES)
"""In place of the signature of the first key of a kind, which the agreement vouches for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What the aggregator states of one version, in any system; each has more to state, in a class of its own.

    Attributes:
        deployment: its name.
        configuration: the digest that devices have agreed to, in hexadecimal.
        version: 1, 2, ...
        issued_ms, expires_ms: log time, and when no device begins with it any more.
        epsilon_micro: what a slot under it costs, in millionths.
        delta_units: in units of 2^-80, as a decimal number.
        private_as_stated: false where its release was weaker than the guarantee, as under a seeded key.
        content_sha256, content_bytes: of the content.
        format: of the statement.
    """

    deployment: str
    configuration: str
    version: int
    issued_ms: int
    expires_ms: int
    epsilon_micro: int
    delta_units: str
    private_as_stated: bool
    content_sha256: str
    content_bytes: int
    format: int = FORMAT

    def as_bytes(self) -> bytes:
        """As it is signed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def read(cls, content: bytes) -> Self:
        """A statement as it was signed.

        Raises:
            BadModel: it is none of this format.
        """
        try:
            values = json.loads(content)
        except (ValueError, RecursionError):
            raise BadModel("model: expected a statement in JSON, got something else") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise BadModel(f"model: expected a statement of format {FORMAT}, got another")
        known = {one.name: str(one.type) for one in fields(cls)}
        if values.keys() != known.keys() or not all(_fits(known[name], values[name]) for name in known):
            raise BadModel("model: expected a statement's own keys, each of its type, got others")
        return cls(**values)

    @classmethod
    def signed_in(cls, fields: Mapping[str, Any], keys: SigningKeys, digest: bytes) -> Self:
        """What the fields of a `STATEMENT_RECORD` state, where the aggregator of a deployment has signed it.

        Raises:
            BadModel: it has not, or of another deployment or version.
        """
        keys.verify(fields["version"], fields["signing_key"], fields["signature"], fields["statement"])
        stated = cls.read(fields["statement"])
        # A signed statement under another number would keep all that are between from being read.
        if (stated.configuration, stated.version) != (digest.hex(), fields["version"]):
            raise BadModel("model: expected a statement of this deployment and version, got another")
        return stated

    def require_content(self, content: bytes, wanted: int) -> None:
        """Refuse a content of another length, or another one than was stated.

        Raises:
            BadModel: it is such a one.
        """
        if len(content) != wanted or self.content_bytes != wanted:
            raise BadModel(f"model: expected arrays of {wanted} bytes, got {len(content)}")
        if hashlib.sha256(content).hexdigest() != self.content_sha256:
            raise BadModel("model: expected the arrays that were stated, got others")

    def signed(self, signer: Signer, digest: bytes, content: bytes) -> dict[str, Any]:
        """The fields of `STATEMENT_RECORD`; ``digest`` is the deployment's."""
        statement = self.as_bytes()
        number, signature = signer.sign(self.version, statement)
        named = {"config_digest": digest, "version": self.version, "signing_key": number}
        return {**named, "statement": statement, "signature": signature, "content": content}


class Keyed(Protocol):
    """A deployment with keys that devices go by; without devices it has none."""

    @property
    def sealing(self) -> Recipients | None: ...
    @property
    def signing(self) -> SigningKeys | None: ...


class ModelBody(NamedTuple):
    """What `GET /v1/model` answers with.

    Attributes:
        statement: as it was signed.
        signing_key: which of the signing keys has.
        signature: 64 bytes.
        signing, sealing: the deployment's keys.
        content: means, then variances, each (K, P) little-endian float64.
    """

    statement: bytes
    signing_key: int
    signature: bytes
    signing: SigningKeys
    sealing: Recipients
    content: bytes

    @classmethod
    def of(cls, fields: Mapping[str, Any], system: Keyed) -> Self:
        """What a `STATEMENT_RECORD` is served as, by a deployment that devices take part in."""
        assert system.signing is not None
        assert system.sealing is not None
        signed = fields["statement"], fields["signing_key"], fields["signature"]
        return cls(*signed, system.signing, system.sealing, fields["content"])

    @property
    def head(self) -> bytes:
        """All before the content."""
        signing = [
            _SIGNING.pack(one.public_key, one.from_version, one.vouched or _UNSIGNED) for one in self.signing.keys
        ]
        sealing = [
            _SEALING.pack(one.public_key, one.vouch_key, one.from_period, one.vouched or _UNSIGNED)
            for one in self.sealing.keys
        ]
        return b"".join(
            (
                MAGIC,
                _LENGTH.pack(len(self.statement)),
                self.statement,
                bytes([self.signing_key]),
                self.signature,
                bytes([len(signing)]),
                *signing,
                bytes([len(sealing)]),
                *sealing,
            )
        )

    @property
    def tag(self) -> str:
        """The entity tag, which follows from what is served: one of the server's choice would be an id."""
        return f'"{hashlib.sha256(self.head).hexdigest()[:32]}"'

    def as_bytes(self) -> bytes:
        """As it travels."""
        return self.head + self.content


def read_model(body: bytes) -> ModelBody:
    """A body as it travels; whether it may be taken is for the agreement to say.

    Raises:
        BadModel: it has other lengths than it says, or keys that do not follow from the first.
    """
    reader = _Reader(body)
    if reader.take(len(MAGIC)) != MAGIC:
        raise BadModel("model: expected the bytes of a model, got others")
    (length,) = _LENGTH.unpack(reader.take(_LENGTH.size))
    if length > MOST_STATEMENT_BYTES:
        raise BadModel(f"model: expected a statement of at most {MOST_STATEMENT_BYTES} bytes, got {length}")
    statement = reader.take(length)
    number, signature = reader.take(1)[0], reader.take(SIGNATURE_BYTES)
    signing = [
        SigningKey(public, version, _vouched(place, signed))
        for place, (public, version, signed) in enumerate(reader.entries(_SIGNING))
    ]
    try:
        sealing = [
            Recipient(public, vouch, period, _vouched(place, signed))
            for place, (public, vouch, period, signed) in enumerate(reader.entries(_SEALING))
        ]
        keys = SigningKeys(tuple(signing)), Recipients(tuple(sealing))
    except BadSeal as error:
        raise BadModel(f"model: {error}") from None
    return ModelBody(statement, number, signature, *keys, reader.rest())


class _Reader:
    """Takes bytes one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, size: int) -> bytes:
        """The next so many.

        Raises:
            BadModel: there are fewer.
        """
        found = self._content[self._at : self._at + size]
        if len(found) != size:
            raise BadModel(f"model: expected {size} more bytes, got {len(found)}")
        self._at += size
        return found

    def entries(self, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """As many of a layout as the next byte says."""
        return [layout.unpack(self.take(layout.size)) for _ in range(self.take(1)[0])]

    def rest(self) -> bytes:
        return self._content[self._at :]


def _vouched(place: int, signed: bytes) -> bytes:
    if place:
        return signed
    if signed != _UNSIGNED:
        raise BadModel("model: expected no signature of the first key of a kind, got one")
    return b""


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "int": int,
    "str": str,
    "bool": bool,
    "float": (int, float),
    "str | None": (str, type(None)),
}


def _fits(declared: str, value: object) -> bool:
    return isinstance(value, _TYPES[declared]) and (declared == "bool" or not isinstance(value, bool))
