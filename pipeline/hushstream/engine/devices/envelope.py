"""The format in which devices get a model: a statement about it, its signature, the deployment's keys, and the content.

All devices get the same bytes. The server of these bytes has no signing key. It can withhold a version only until the
version before has expired, and a device that has seen a version accepts no older one.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Protocol, Self

from hushstream.engine.devices.kept import BadModel, BadSeal
from hushstream.engine.devices.sealing import PUBLIC_KEY_BYTES, VOUCH_KEY_BYTES, Recipient, Recipients
from hushstream.engine.devices.signing import PUBLIC_BYTES, SIGNATURE_BYTES, Signer, SigningKey, SigningKeys

FORMAT = 1
MAGIC = b"hushmdl1"
MOST_STATEMENT_BYTES = 65_536
STATEMENT_RECORD = "ModelStatement"

_LENGTH = struct.Struct("<I")
_SIGNING = struct.Struct(f"<{PUBLIC_BYTES}sQ{SIGNATURE_BYTES}s")
_SEALING = struct.Struct(f"<{PUBLIC_KEY_BYTES}s{VOUCH_KEY_BYTES}sq{SIGNATURE_BYTES}s")
_UNSIGNED = bytes(SIGNATURE_BYTES)
"""Value in place of the signature on the first key of a chain: no key signs it, because the agreement names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The aggregator's signed statement about one version of a model. Each system derives a class with more fields.

    Attributes:
        deployment: name of the deployment.
        configuration: digest of the configuration that devices have agreed to, in hexadecimal.
        version: 1, 2, ...
        issued_ms, expires_ms: log time at which it was made, and the time from which no device begins with it.
        epsilon_micro: epsilon that a slot under this version costs, in millionths.
        delta_units: delta of that price in units of 2^-80, as decimal digits.
        private_as_stated: False if its release was weaker than the guarantee, for instance under a seeded key.
        content_sha256, content_bytes: digest and size of the content.
        format: format of the statement.
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
        """The statement as the bytes that are signed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Decode a statement from the bytes that were signed.

        Raises:
            BadModel: it is no statement of this format.
        """
        try:
            values = json.loads(content)
        except (ValueError, RecursionError):
            raise BadModel("model: expected a statement in JSON, got something else") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise BadModel(f"model: expected a statement of format {FORMAT}, got another")
        known = {one.name: str(one.type) for one in fields(cls)}
        if values.keys() != known.keys() or not all(_fits(known[name], values[name]) for name in known):
            raise BadModel("model: expected the fields of a statement, each of its type, got others")
        return cls(**values)

    @classmethod
    def signed_in(cls, fields: Mapping[str, Any], keys: SigningKeys, digest: bytes) -> Self:
        """Decode the statement in a `STATEMENT_RECORD`, if the aggregator of the deployment has signed it.

        Raises:
            BadModel: it is not signed, or it is about another deployment or version.
        """
        keys.verify(fields["version"], fields["signing_key"], fields["signature"], fields["statement"])
        stated = cls.read(fields["statement"])
        # A signed statement under a higher version number would make readers skip all versions in between.
        if (stated.configuration, stated.version) != (digest.hex(), fields["version"]):
            raise BadModel("model: expected a statement of this deployment and version, got another")
        return stated

    def require_content(self, content: bytes, wanted: int) -> None:
        """Refuse a content that has not ``wanted`` bytes, or not the stated digest.

        Raises:
            BadModel: the length or the digest differs.
        """
        if len(content) != wanted or self.content_bytes != wanted:
            raise BadModel(f"model: expected arrays of {wanted} bytes, got {len(content)}")
        if hashlib.sha256(content).hexdigest() != self.content_sha256:
            raise BadModel("model: expected the arrays that were stated, got others")

    def signed(self, signer: Signer, digest: bytes, content: bytes) -> dict[str, Any]:
        """Sign the statement; returns the fields of `STATEMENT_RECORD`. ``digest`` is that of the deployment."""
        statement = self.as_bytes()
        number, signature = signer.sign(self.version, statement)
        named = {"config_digest": digest, "version": self.version, "signing_key": number}
        return {**named, "statement": statement, "signature": signature, "content": content}


class Keyed(Protocol):
    """A deployment with the public keys that devices use; both are None if no devices take part."""

    @property
    def sealing(self) -> Recipients | None: ...
    @property
    def signing(self) -> SigningKeys | None: ...


class ModelBody(NamedTuple):
    """The body of the answer to `GET /v1/model`.

    Attributes:
        statement: the bytes that were signed.
        signing_key: index of the key that signed them, in ``signing``.
        signature: 64 bytes.
        signing, sealing: key chains of the deployment.
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
        """Make the body from the fields of a `STATEMENT_RECORD`; devices take part in the deployment."""
        assert system.signing is not None
        assert system.sealing is not None
        signed = fields["statement"], fields["signing_key"], fields["signature"]
        return cls(*signed, system.signing, system.sealing, fields["content"])

    @property
    def head(self) -> bytes:
        """The bytes before the content."""
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
        """The entity tag, a digest of what is served. A tag that the server chose could identify a device."""
        return f'"{hashlib.sha256(self.head).hexdigest()[:32]}"'

    def as_bytes(self) -> bytes:
        """The whole body as bytes."""
        return self.head + self.content


def read_model(body: bytes) -> ModelBody:
    """Decode the body of an answer. The agreement decides whether the device may accept the model.

    Raises:
        BadModel: its lengths are wrong, or a key in it is not signed by the key before.
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
    """A cursor over bytes."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes, and advance.

        Raises:
            BadModel: fewer bytes are left.
        """
        found = self._content[self._at : self._at + size]
        if len(found) != size:
            raise BadModel(f"model: expected {size} more bytes, got {len(found)}")
        self._at += size
        return found

    def entries(self, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """Read entries of a layout; the next byte says how many there are."""
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
