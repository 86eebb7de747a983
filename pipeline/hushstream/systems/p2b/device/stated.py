"""A model as devices take it: what the aggregator states of it, under its signature, and the arrays.

The same bytes go to everybody. Whoever serves them holds no key that signs, and can keep a version back for as long as
the one before it has not expired; a device that has seen a version takes no older one.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.p2b.contribution.errors import BadSeal
from hushstream.systems.p2b.contribution.recipients import VOUCH_KEY_BYTES, Recipient, Recipients
from hushstream.systems.p2b.contribution.sealed import PUBLIC_KEY_BYTES
from hushstream.systems.p2b.device.errors import BadModel
from hushstream.systems.p2b.device.signing import PUBLIC_BYTES, SIGNATURE_BYTES, SigningKey, SigningKeys

FORMAT = 1
MAGIC = b"hushmdl1"
MOST_STATEMENT_BYTES = 65_536

_LENGTH = struct.Struct("<I")
_SIGNING = struct.Struct(f"<{PUBLIC_BYTES}sQ{SIGNATURE_BYTES}s")
_SEALING = struct.Struct(f"<{PUBLIC_KEY_BYTES}s{VOUCH_KEY_BYTES}sq{SIGNATURE_BYTES}s")
_UNSIGNED = bytes(SIGNATURE_BYTES)
"""In place of the signature of the first key of a kind, which the agreement vouches for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What the aggregator states of one version.

    Attributes:
        deployment: its name.
        configuration: the digest that devices have agreed to, in hexadecimal.
        layout: digest of the declared features and the budgets, in hexadecimal.
        arms, cells: K and P.
        version: 1, 2, ...
        issued_ms, expires_ms: log time, and when no device begins with it any more.
        reward_variance: of a reward around its mean.
        epsilon_micro: what a slot under it costs, in millionths.
        delta_units: in units of 2^-80, as a decimal number.
        private_as_stated: false where its release was weaker than the guarantee, as under a seeded key.
        content_sha256, content_bytes: of the arrays.
        catalogue, items_sha256: 0 and None: items of devices are numbers.
        format: of the statement.
    """

    deployment: str
    configuration: str
    layout: str
    arms: int
    cells: int
    version: int
    issued_ms: int
    expires_ms: int
    reward_variance: float
    epsilon_micro: int
    delta_units: str
    private_as_stated: bool
    content_sha256: str
    content_bytes: int
    catalogue: int = 0
    items_sha256: str | None = None
    format: int = FORMAT

    def as_bytes(self) -> bytes:
        """As it is signed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def read(cls, content: bytes) -> Statement:
        """A statement as it was signed.

        Raises:
            BadModel: it is none of this format.
        """
        try:
            values = json.loads(content)
        except ValueError:
            raise BadModel("model: expected a statement in JSON, got something else") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise BadModel(f"model: expected a statement of format {FORMAT}, got another")
        known = {one.name for one in fields(cls)}
        if values.keys() != known or not all(_fits(name, values[name]) for name in known):
            raise BadModel("model: expected a statement's own keys, each of its type, got others")
        return cls(**values)


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
    sealing = [
        Recipient(public, vouch, period, _vouched(place, signed))
        for place, (public, vouch, period, signed) in enumerate(reader.entries(_SEALING))
    ]
    try:
        keys = SigningKeys(tuple(signing)), Recipients(tuple(sealing))
    except BadSeal as error:
        raise BadModel(f"model: {error}") from None
    return ModelBody(statement, number, signature, *keys, reader.rest())


def content_of(means: bytes, variances: bytes) -> tuple[bytes, str]:
    """The content of a model's arrays, as its record has them, and its digest."""
    content = means + variances
    return content, hashlib.sha256(content).hexdigest()


def arrays_of(statement: Statement, content: bytes) -> tuple[NDArray[np.float64], ...]:
    """Means and variances (K, P), and the variance of a reward (1,), as `FeaturePolicy.adopt` takes them.

    Raises:
        BadModel: they are not those of the statement, or not such numbers as a model has.
    """
    shape = (statement.arms, statement.cells)
    wanted = 2 * 8 * math.prod(shape)
    if len(content) != wanted or statement.content_bytes != wanted:
        raise BadModel(f"model: expected arrays of {wanted} bytes, got {len(content)}")
    if hashlib.sha256(content).hexdigest() != statement.content_sha256:
        raise BadModel("model: expected the arrays that were stated, got others")
    means, variances = np.frombuffer(content, "<f8").reshape(2, *shape).astype(np.float64)
    g = statement.reward_variance
    good = np.isfinite(means).all() and np.isfinite(variances).all() and (variances > 0).all()
    if not (good and math.isfinite(g) and g > 0):
        raise BadModel("model: expected finite means and positive variances, got others")
    return means, variances, np.array([g])


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


def _fits(name: str, value: object) -> bool:
    declared = str(next(one.type for one in fields(Statement) if one.name == name))
    return isinstance(value, _TYPES[declared]) and (declared == "bool" or not isinstance(value, bool))
