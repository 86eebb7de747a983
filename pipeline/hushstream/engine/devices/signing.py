"""The chain of the aggregator's signing keys, each for models from a version on.

No noise is drawn under a signing key, and it opens nothing. Whoever has it can make devices accept a model, but learns
nothing about anybody.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushstream.engine.devices.errors import BadModel
from hushstream.engine.devices.vouching import PublicKeys, signed_by
from hushstream.privacy.keys import Key

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
