"""One unambiguous byte encoding of mixed values, for keys and noise addresses.

Every value is a type tag of one byte, the length of its payload as 8 bytes little-endian, and the payload.
A sequence of encoded values can be read back in exactly one way, so two different sequences never encode
alike, whatever they contain.
"""

from __future__ import annotations

from typing import TypeAlias

from hushstream.privacy.errors import PrivacyError

Part: TypeAlias = "bytes | str | int | tuple[Part, ...] | None"
"""What can be encoded; tuples nest."""


def encode(*parts: Part) -> bytes:
    """Encode ``parts`` in order; injective over sequences of parts.

    Raises:
        PrivacyError: a part of another type (a bool too: it would encode like 0 or 1).
    """
    pieces: list[bytes] = []
    for part in parts:
        # Text is tested first, because nearly all parts are text: each user's key is derived from it.
        tag, payload = (b"s", part.encode()) if type(part) is str else _tagged(part)
        pieces += (tag, len(payload).to_bytes(8, "little"), payload)
    return b"".join(pieces)


def _tagged(part: Part) -> tuple[bytes, bytes]:
    if isinstance(part, bytes):
        return b"b", part
    if isinstance(part, str):
        return b"s", part.encode()
    if isinstance(part, int) and not isinstance(part, bool):
        return b"i", part.to_bytes(part.bit_length() // 8 + 1, "big", signed=True)
    if part is None:
        return b"n", b""
    if isinstance(part, tuple):
        return b"t", encode(*part)
    raise PrivacyError(f"encode: expected bytes, str, int, None or a tuple of them, got {type(part).__name__}")
