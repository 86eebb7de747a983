"""What the privacy package refuses. No message repeats key material or private content."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class PrivacyError(HushstreamError):
    """A privacy parameter, key or budget that cannot be used; says what was expected and what came."""


class KeyFileError(PrivacyError):
    """A key file that is missing, readable by others, damaged, or in the way."""


class RetiredKey(KeyFileError):
    """A key of an epoch whose key was destroyed: what it released can no longer be derived again."""


class BadAmount(PrivacyError):
    """A number that is no epsilon, delta or probability."""


class BadNoise(PrivacyError):
    """Noise that cannot be drawn: an impossible scale, size or address, or a sum beyond 64 bits."""


class BadGuarantee(PrivacyError):
    """A guarantee was asked for with settings that have none."""


class LedgerError(PrivacyError):
    """A ledger that is damaged, older than its high-water mark, or asked to change an entry."""
