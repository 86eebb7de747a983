"""Errors of the privacy package. No message repeats key material or private content."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class PrivacyError(HushstreamError):
    """A privacy parameter, key or budget cannot be used. The message says what was expected and what was given."""


class KeyFileError(PrivacyError):
    """A key file is missing, readable by others, or damaged, or it exists already."""


class RetiredKey(KeyFileError):
    """The key of this epoch was destroyed, so its releases can no longer be derived again."""


class BadAmount(PrivacyError):
    """A number that is no epsilon, delta or probability."""


class BadNoise(PrivacyError):
    """Noise that cannot be drawn: an impossible scale, size or address, or a sum beyond 64 bits."""


class BadGuarantee(PrivacyError):
    """There is no guarantee for these settings."""


class LedgerError(PrivacyError):
    """A ledger is damaged, older than its high-water mark, or would have to change an entry."""
