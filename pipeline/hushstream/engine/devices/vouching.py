"""Public keys of one use, one after another, each vouched for by the one before it (Ed25519, RFC 8032).

A key can turn while a deployment runs: from a stated number on (a report period, a version of the model) the next key
is in use. Which one that is follows from the number alone, that is from the log, so that a worker that computes it
again gives the same bytes.

The configuration's digest covers the first key, so an agent that pinned it trusts that key and no other. Each later key
is signed with one that only the holder of the key before it has. So nobody who did not hold the first can put another
in its place; who did hold one of them can, as long as their key would be believed: destroying it does not take back
what they may have signed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, ClassVar, Generic, NoReturn, Protocol, Self, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hushstream.engine.devices.errors import DeviceError
from hushstream.privacy.keys import Key

MOST_KEYS = 255
"""A model names their number in one byte."""


class PublicKey(Protocol):
    """One key, as all may know it: a frozen dataclass, with the fields of its file.

    Attributes:
        public_key: 32 bytes.
        vouch_key: what its signature for the next key is looked at with.
        vouched: the signature of the key before it; empty for the first.
        since: the first number for which it is in use.
        said: what a signature vouches for.
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
    def said(self) -> bytes: ...


OneT = TypeVar("OneT", bound=PublicKey)


@dataclass(frozen=True, slots=True)
class PublicKeys(ABC, Generic[OneT]):
    """All keys of one use, in the order of their numbers."""

    keys: tuple[OneT, ...]

    use: ClassVar[str]
    """In messages: "sealing"."""
    counted: ClassVar[str]
    """In messages, what the numbers are of: "period"."""
    refusal: ClassVar[type[DeviceError]]
    one: ClassVar[type[Any]]

    def __post_init__(self) -> None:
        """Refuse keys that do not follow from the first.

        Raises:
            BadSeal, BadModel: there is none or too many; numbers do not grow from 0 on; or a key is not vouched for.
        """
        numbers = [key.since for key in self.keys]
        if not 1 <= len(numbers) <= MOST_KEYS or numbers[0] != 0 or sorted(set(numbers)) != numbers:
            self._refuse(f"1 to {MOST_KEYS}, with {self.counted}s that grow from 0 on, got {numbers}")
        for before, key in pairwise(self.keys):
            if not signed_by(before.vouch_key, key.vouched, key.said):
                self._refuse(
                    f"the key from {self.counted} {key.since} to be vouched for by the one before it, it is not"
                )

    @classmethod
    @abstractmethod
    def half(cls, key: Key, number: int) -> OneT:
        """The public half of a key that is in use from a number on, and that nobody vouches for yet."""

    @classmethod
    @abstractmethod
    def voucher(cls, key: Key) -> Ed25519PrivateKey:
        """What a key signs the next one with."""

    @classmethod
    def first(cls, key: Key) -> Self:
        """The key that a deployment begins with."""
        return cls((cls.half(key, 0),))

    @classmethod
    def read(cls, listed: Iterable[Mapping[str, Any]]) -> Self:
        """Keys as their file has them.

        Raises:
            BadSeal, BadModel: they do not follow from the first.
            KeyError, TypeError, ValueError: it is no such file.
        """
        known = {one.name: bytes.fromhex if one.type == "bytes" else int for one in fields(cls.one)}
        return cls(tuple(cls.one(**{name: read(key[name]) for name, read in known.items()}) for key in listed))

    def listed(self) -> list[Mapping[str, Any]]:
        """As their file has them: bytes in hexadecimal."""
        values = map(asdict, self.keys)
        return [{name: one.hex() if isinstance(one, bytes) else one for name, one in key.items()} for key in values]

    def followed_by(self, key: Key, number: int, held: Sequence[Key]) -> Self:
        """With one more key, in use from a number on.

        Args:
            key: the next one.
            number: later than that of the newest key here.
            held: keys, the newest one here among them.

        Raises:
            BadSeal, BadModel: it is not; or the key is here already, or its number is not later.
        """
        made, newest = self.half(key, number), self.keys[-1].public_key
        if made.public_key in [one.public_key for one in self.keys]:
            self._refuse("a key that is not published yet, got one that is; turn it first")
        before = [one for one in held if self.half(one, 0).public_key == newest]
        if not before:
            self._refuse(f"the key of public half {newest.hex()[:16]}... to vouch, got others")
        return type(self)((*self.keys, replace(made, vouched=self.voucher(before[0]).sign(made.said))))

    def number_at(self, number: int) -> int:
        """Which key is in use, by its place among them; before the first number, the first."""
        return max((place for place, key in enumerate(self.keys) if key.since <= number), default=0)

    def require_newest_in(self, held: Mapping[bytes, object]) -> None:
        """Refuse keys, by their public halves, without the newest published one.

        Raises:
            BadSeal, BadModel: it is not among them.
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
    """Whether a signature is that of a key."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
