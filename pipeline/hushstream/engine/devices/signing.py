"""The chain of the aggregator's signing keys, each for models from a version on.

No noise is drawn under a signing key, and it opens nothing. Whoever has it can make devices accept a model, but learns
nothing about anybody.

*Vouching.* A chain of public keys for one use: each key is signed by the key before it (Ed25519, RFC 8032).

A key can be rotated while a deployment runs: from a stated number on (a report period, a version of the model) the next
key is in use. The number alone decides which key is in use, and the number is in the log. So a worker that recomputes
a record uses the same key and gives the same bytes.

The configuration's digest covers the first key, so an agent that pinned this digest trusts the first key and no other.
Only the holder of a key can sign the next one. So nobody can add a key who never held a key of the chain. To destroy a
key does not revoke what was signed with it before.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, ClassVar, Generic, NoReturn, Protocol, Self, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hushstream.engine.devices.kept import BadModel, DeviceError
from hushstream.privacy.keys import Key

MOST_KEYS = 255
"""Largest number of keys in a chain, because the format of a model counts them in one byte."""


class PublicKey(Protocol):
    """The public half of one key: a frozen dataclass, with the fields of its file.

    Attributes:
        public_key: 32 bytes.
        vouch_key: public key that verifies the signature on the next key.
        vouched: signature on this key, by the key before it; empty for the first key.
        since: the first number for which it is in use.
        signed_bytes: the bytes that the signature covers.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def public_key(self) -> bytes: ...
    @property
    def vouch_key(self) -> bytes: ...
    @property
    def vouched(self) -> bytes: ...
    @property
    def since(self) -> int: ...
    @property
    def signed_bytes(self) -> bytes: ...


OneT = TypeVar("OneT", bound=PublicKey)


@dataclass(frozen=True, slots=True)
class PublicKeys(ABC, Generic[OneT]):
    """All keys for one use, in the order of their numbers."""

    keys: tuple[OneT, ...]

    use: ClassVar[str]
    """The use in words, for messages: "sealing"."""
    counted: ClassVar[str]
    """What the numbers count, in words, for messages: "period"."""
    refusal: ClassVar[type[DeviceError]]
    one: ClassVar[type[Any]]

    def __post_init__(self) -> None:
        """Refuse keys that are not a chain.

        Raises:
            BadSeal, BadModel: there is no key or too many; numbers do not grow from 0 on; or a key is not signed by the
                key before it.
        """
        numbers = [key.since for key in self.keys]
        if not 1 <= len(numbers) <= MOST_KEYS or numbers[0] != 0 or sorted(set(numbers)) != numbers:
            self._refuse(f"1 to {MOST_KEYS}, with {self.counted}s that grow from 0 on, got {numbers}")
        for before, key in pairwise(self.keys):
            if not signed_by(before.vouch_key, key.vouched, key.signed_bytes):
                self._refuse(f"the key from {self.counted} {key.since} to be signed by the one before it, it is not")

    @classmethod
    @abstractmethod
    def public_half(cls, key: Key, number: int) -> OneT:
        """Make the public half of a key that is in use from a number on, without the signature of the key before."""

    @classmethod
    @abstractmethod
    def next_signer(cls, key: Key) -> Ed25519PrivateKey:
        """Derive the private key with which a key signs the next one."""

    @classmethod
    def first(cls, key: Key) -> Self:
        """The chain that a deployment begins with: one key."""
        return cls((cls.public_half(key, 0),))

    @classmethod
    def read(cls, listed: Iterable[Mapping[str, Any]]) -> Self:
        """Read keys from the content of their file.

        Raises:
            BadSeal, BadModel: they are not a chain.
            KeyError, TypeError, ValueError: it is no such file.
        """
        known = {one.name: bytes.fromhex if one.type == "bytes" else int for one in fields(cls.one)}
        return cls(tuple(cls.one(**{name: read(key[name]) for name, read in known.items()}) for key in listed))

    def listed(self) -> list[Mapping[str, Any]]:
        """The content of their file, with bytes in hexadecimal."""
        values = map(asdict, self.keys)
        return [{name: one.hex() if isinstance(one, bytes) else one for name, one in key.items()} for key in values]

    def followed_by(self, key: Key, number: int, held: Sequence[Key]) -> Self:
        """The chain with one more key, which is in use from a number on.

        Args:
            key: the next key.
            number: number from which it is in use, later than that of the newest key in the chain.
            held: private keys; the newest key of the chain must be among them, because it signs the next.

        Raises:
            BadSeal, BadModel: the newest key is not among ``held``, the key is in the chain already, or its number is
                not later.
        """
        made, newest = self.public_half(key, number), self.keys[-1].public_key
        if made.public_key in [one.public_key for one in self.keys]:
            self._refuse("a key that is not published yet, got one that is; rotate it first")
        before = [one for one in held if self.public_half(one, 0).public_key == newest]
        if not before:
            self._refuse(f"the key of public half {newest.hex()[:16]}..., to sign the next one, got others")
        return type(self)((*self.keys, replace(made, vouched=self.next_signer(before[0]).sign(made.signed_bytes))))

    def number_at(self, number: int) -> int:
        """The index of the key that is in use at a number; 0 also below the first number."""
        return max((place for place, key in enumerate(self.keys) if key.since <= number), default=0)

    def require_newest_in(self, held: Mapping[bytes, object]) -> None:
        """Refuse a set of held keys, by their public halves, that lacks the newest published one.

        Raises:
            BadSeal, BadModel: the newest published key is not among them.
        """
        newest = self.keys[-1].public_key
        if newest not in held:
            known = ", ".join(f"{public.hex()[:16]}..." for public in held) or "none"
            raise self.refusal(
                f"expected the {self.use} key of public half {newest.hex()[:16]}..., which the deployment publishes, "
                f"got the one of {known}"
            )

    def _refuse(self, expected: str) -> NoReturn:
        raise self.refusal(f"{self.use} keys: expected {expected}")


def signed_by(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether a signature on a message is valid under a public key."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


PUBLIC_BYTES, SIGNATURE_BYTES = 32, 64

_VOUCHED = b"hushstream signing key\0"
_STATED = b"hushstream model statement 1\0"
_VERSION = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The public half of one signing key.

    Attributes:
        public_key: 32 bytes.
        from_version: the first version of a model that it signs.
        vouched: signature on this key, by the key before it; empty for the first key.
    """

    public_key: bytes
    from_version: int = 0
    vouched: bytes = b""

    @property
    def vouch_key(self) -> bytes:
        return self.public_key

    @property
    def since(self) -> int:
        return self.from_version

    @property
    def signed_bytes(self) -> bytes:
        return _VOUCHED + self.public_key + _VERSION.pack(self.from_version)


@dataclass(frozen=True, slots=True)
class SigningKeys(PublicKeys[SigningKey]):
    """All signing keys of a deployment, in the order of their versions."""

    use: ClassVar[str] = "signing"
    counted: ClassVar[str] = "version"
    refusal: ClassVar[type[BadModel]] = BadModel
    one: ClassVar[type[SigningKey]] = SigningKey

    @classmethod
    def public_half(cls, key: Key, number: int) -> SigningKey:
        return SigningKey(_public(key), number)

    @classmethod
    def next_signer(cls, key: Key) -> Ed25519PrivateKey:
        return _private(key)

    @property
    def pinned(self) -> bytes:
        """The bytes that the configuration's digest covers: the first key."""
        return self.keys[0].public_key

    def verify(self, version: int, number: int, signature: bytes, statement: bytes) -> None:
        """Refuse a statement that is not signed by the key of its version.

        Raises:
            BadModel: it is signed by another key, or not at all.
        """
        # An unsigned statement may name any version, also one below 0.
        if number != self.number_at(version):
            raise BadModel(f"model: expected the signature of key {self.number_at(version)}, got that of key {number}")
        if not signed_by(self.keys[number].public_key, signature, _STATED + statement):
            raise BadModel("model: expected a statement signed by the aggregator, got another")


class Signer:
    """Signs statements at the aggregator, with those private keys that it still holds."""

    __slots__ = ("_held", "keys")

    def __init__(self, keys: SigningKeys, held: Sequence[Key]) -> None:
        """Keep the private halves of the published keys among ``held``.

        Raises:
            BadModel: the newest published key is not among them.
        """
        self.keys = keys
        self._held = {_public(key): _private(key) for key in held}
        keys.require_newest_in(self._held)

    def sign(self, version: int, statement: bytes) -> tuple[int, bytes]:
        """Sign the statement of a version; returns the key's index and the signature.

        Equal arguments give equal results.

        Raises:
            BadModel: that key was destroyed.
        """
        number = self.keys.number_at(version)
        private = self._held.get(self.keys.keys[number].public_key)
        if private is None:
            raise BadModel(f"model: expected the signing key of version {version}, got none: it was destroyed")
        return number, private.sign(_STATED + statement)

    def __repr__(self) -> str:
        """The public halves; never the private ones."""
        return f"Signer({self.keys!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse: a pickled key would leave its zone unnoticed."""
        raise BadModel("signing key: expected to stay in this process, got a request to pickle it")


def _private(key: Key) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(key.prf("model-signing"))


def _public(key: Key) -> bytes:
    return _private(key).public_key().public_bytes_raw()
