"""Errors in a declaration of features, in a value, or in a row from the wire."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class FeatureError(HushstreamError):
    """Root of this package's errors. Each message names the key, the expected and the given value, never a payload."""


class BadDeclaration(FeatureError):
    """A declaration of features is impossible."""


class BadValue(FeatureError):
    """A value is not of its feature's type, or names no declared feature."""


class BadRows(FeatureError):
    """Bytes from the wire are not valid rows of the declared features."""
