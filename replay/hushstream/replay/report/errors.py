"""What is wrong with a result or its folder."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class BadResult(HushstreamError):
    """A result holds a value that is impossible, has no class, or must not be shown."""


class ReportNotWritten(HushstreamError):
    """The folder of a report cannot be written."""
