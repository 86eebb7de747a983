"""The aggregator's signing keys, one after another, each signed by the one before it (Ed25519, RFC 8032).

The configuration's digest covers the first key, so an agent that pinned it trusts that key and no other. A signing key
makes no noise and opens nothing: whoever has it can make devices take a model, and learns nothing of anybody.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hushstream.engine.devices.errors import BadModel
from hushstream.privacy.keys import Key

PUBLIC_BYTES, SIGNATURE_BYTES = 32, 64
MOST_KEYS = 255

_VOUCHED = b"hushstream signing key\0"
_STATED = b"hushstream model statement 1\0"
_VERSION = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One signing key, as all may know it.

    Attributes:
        public_key: 32 bytes.
        from_version: the first version of a model that it signs.
        vouched: the signature of the key before it; empty for the first.
    """

    public_key: bytes
    from_version: int = 0
    vouched: bytes = b""

    @property
    def said(self) -> bytes:
        """What a signature vouches for."""
        return _VOUCHED + self.public_key + _VERSION.pack(self.from_version)


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """All signing keys of a deployment, in the order of their versions."""

    keys: tuple[SigningKey, ...]

    def __post_init__(self) -> None:
        """Refuse keys that do not follow from the first.

        Raises:
            BadModel: there is none or too many; versions do not grow from 0 on; or a key is not vouched for.
        """
        versions = [key.from_version for key in self.keys]
        if not 1 <= len(versions) <= MOST_KEYS or versions[0] != 0 or sorted(set(versions)) != versions:
            raise BadModel(f"signing keys: expected 1 to {MOST_KEYS}, with versions that grow from 0 on")
        for before, key in zip(self.keys, self.keys[1:], strict=False):
            if not signed_by(before.public_key, key.vouched, key.said):
                raise BadModel(
                    f"signing keys: expected the key from version {key.from_version} to be vouched for by the one "
                    "before it, it is not"
                )

    @classmethod
    def first(cls, key: Key) -> Self:
        """The signing key that a deployment begins with."""
        return cls((SigningKey(_public(key)),))

    def followed_by(self, key: Key, from_version: int, held: Sequence[Key]) -> SigningKeys:
        """With one more key, for versions from one on.

        Args:
            key: the next signing key.
            from_version: later than that of the newest key here.
            held: signing keys, the newest one here among them.

        Raises:
            BadModel: it is not; or the key is here already, or its version is not later.
        """
        if _public(key) in [one.public_key for one in self.keys]:
            raise BadModel("signing keys: expected a key that is not published yet, got one that is; turn it first")
        before = next((one for one in held if _public(one) == self.keys[-1].public_key), None)
        if before is None:
            raise BadModel("signing keys: expected the newest published key at hand to vouch, got others")
        made = SigningKey(_public(key), from_version)
        return SigningKeys((*self.keys, SigningKey(made.public_key, from_version, _private(before).sign(made.said))))

    @property
    def pinned(self) -> bytes:
        """What the configuration's digest covers: the first key."""
        return self.keys[0].public_key

    def at(self, version: int) -> int:
        """Which key signs a version, by its number among them."""
        # An unsigned statement may name any version, one below 0 too.
        return max((number for number, key in enumerate(self.keys) if key.from_version <= version), default=0)

    def verify(self, version: int, number: int, signature: bytes, statement: bytes) -> None:
        """Refuse a statement that is not signed by the key of its version.

        Raises:
            BadModel: it is not.
        """
        if number != self.at(version):
            raise BadModel(f"model: expected the signature of key {self.at(version)}, got that of key {number}")
        if not signed_by(self.keys[number].public_key, signature, _STATED + statement):
            raise BadModel("model: expected a statement signed by the aggregator, got another")


class Signer:
    """The aggregator's side: the published keys that it holds."""

    __slots__ = ("_held", "keys")

    def __init__(self, keys: SigningKeys, held: Sequence[Key]) -> None:
        """Keep the private halves of the published keys among ``held``.

        Raises:
            BadModel: the newest published key is not among them.
        """
        self.keys = keys
        self._held = {_public(key): _private(key) for key in held}
        newest = keys.keys[-1].public_key
        if newest not in self._held:
            known = ", ".join(f"{public.hex()[:16]}..." for public in self._held) or "none"
            raise BadModel(
                f"expected the signing key of public half {newest.hex()[:16]}..., which the deployment publishes, got "
                f"the one of {known}"
            )

    def sign(self, version: int, statement: bytes) -> tuple[int, bytes]:
        """Which key signs a version's statement, and its signature; the same for the same arguments.

        Raises:
            BadModel: that key was destroyed.
        """
        number = self.keys.at(version)
        private = self._held.get(self.keys.keys[number].public_key)
        if private is None:
            raise BadModel(f"model: expected the signing key of version {version}, which is not at hand any more")
        return number, private.sign(_STATED + statement)

    def __repr__(self) -> str:
        """The public halves; never the private ones."""
        return f"Signer({self.keys!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse: a pickled key would leave its zone unnoticed."""
        raise BadModel("signing key: expected to stay in this process, got a request to pickle it")


def signed_by(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether a signature is that of a key."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _private(key: Key) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(key.prf("model-signing"))


def _public(key: Key) -> bytes:
    return _private(key).public_key().public_bytes_raw()
