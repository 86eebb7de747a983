"""Public features of items, which are known without any rating, such as genres."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from hushstream.engine.values import ConfigurationError
from hushstream.systems.bgt.slots import Float64


def features_bytes(features: Float64) -> bytes:
    """(I, f) features as bytes for the deployment's digest; empty if there are none."""
    return features.astype("<f8").tobytes()


def features_file(features: Float64) -> bytes:
    """(I, f) features as a file: a row of numbers for each item, exactly."""
    return (json.dumps(features.tolist()) + "\n").encode()


def features_of(rows: Any, items: int, count: int, where: str) -> Float64:
    """(items, count) features from the content of their file.

    Raises:
        ConfigurationError: they are of another size, or not finite.
    """
    try:
        features = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        features = np.zeros((0, 0))
    if features.shape != (items, count) or not np.isfinite(features).all():
        raise ConfigurationError(f"{where}: expected {count} finite features of {items} items, got something else")
    return features


def parse_features(text: str, items: int, count: int, where: str) -> Float64:
    """(items, count) features from lines ``item,number,...,number``; an item without a line has zeros.

    Raises:
        ConfigurationError: a line is something else, or an item has two lines.
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
