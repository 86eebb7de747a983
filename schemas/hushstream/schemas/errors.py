"""The one root of every error that a user of hushstream can meet."""

from __future__ import annotations


class HushstreamError(Exception):
    """Base of all hushstream errors; its message names what was expected and what came, never a payload."""
