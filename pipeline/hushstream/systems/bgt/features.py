"""Public features of items: what is known of them without any rating, such as genres."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from hushstream.engine.values import ConfigurationError
from hushstream.systems.bgt.slots import Float64


def features_bytes(features: Float64) -> bytes:
    """The canonical form of (I, f) features: little-endian float64; none at all are no bytes."""
    return features.astype("<f8").tobytes()


def features_of(packed: bytes, items: int, count: int, where: str) -> Float64:
    """(items, count) features from their canonical form.

    Raises:
        ConfigurationError: of another size, or not finite.
    """
    if len(packed) != items * count * 8:
        raise ConfigurationError(f"{where}: expected {count} features of {items} items, got {len(packed)} bytes")
    features = np.frombuffer(packed, "<f8").reshape(items, count).astype(np.float64)
    if not np.isfinite(features).all():
        raise ConfigurationError(f"{where}: expected finite numbers, got others")
    return features


def parse_features(text: str, items: int, count: int, where: str) -> Float64:
    """(items, count) features from lines ``item,number,...,number``; an item without a line has zeros.

    Raises:
        ConfigurationError: a line is something else, or an item has two.
    """
    features = np.zeros((items, count))
    seen: set[int] = set()
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row:
            continue
        item = _item(row, items, count)
        if item is None or item in seen:
            raise ConfigurationError(
                f"{where}, line {number}: expected an item from 0 to {items - 1}, each once, and {count} finite "
                f"numbers, got something else"
            )
        seen.add(item)
        features[item] = [float(value) for value in row[1:]]
    return features


def _item(row: Sequence[str], items: int, count: int) -> int | None:
    """The item of a line, if it is one."""
    try:
        item, values = int(row[0]), [float(value) for value in row[1:]]
    except ValueError:
        return None
    fits = 0 <= item < items and len(values) == count and bool(np.isfinite(values).all())
    return item if fits else None
