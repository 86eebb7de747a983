"""The base class of every error that a user of hushstream can get."""

from __future__ import annotations


class HushstreamError(Exception):
    """Base of all hushstream errors. The message names the expected and the given value, never a payload."""


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """The reason why a file cannot be read as UTF-8, in words for the person who named it."""
    if isinstance(error, UnicodeDecodeError):
        return "bytes that are no UTF-8"
    return error.strerror or "one that cannot be read"
