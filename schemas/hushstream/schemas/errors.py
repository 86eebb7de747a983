"""The one root of every error that a user of hushstream can meet."""

from __future__ import annotations


class HushstreamError(Exception):
    """Base of all hushstream errors; its message names what was expected and what came, never a payload."""


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """What came where a file of UTF-8 was expected, in words for whoever named it."""
    if isinstance(error, UnicodeDecodeError):
        return "bytes that are no UTF-8"
    return error.strerror or "one that cannot be read"
