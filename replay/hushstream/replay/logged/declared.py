"""Turns columns of a table into values of declared features, as applications send them, and into contexts of a learner.

A cell of CSV is a text. Numbers are parsed from it; true, false, yes and no are booleans; tags are joined by ``|`` or
``;``. An empty cell, None and NaN are missing values. Lists, such as those of an embedding, come only from Parquet or
data frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hushstream.features.checks import LONGEST_TEXT
from hushstream.features.errors import FeatureError
from hushstream.features.schema import FeatureSchema
from hushstream.replay.logged.log import LogError

TAG_SEPARATORS = ("|", ";")
_TRUTH = {"true": True, "false": False, "yes": True, "no": False}
_TOO_LONG = "\x00"


class WrongValue(ValueError):
    """A cell holds no value of its feature's kind; the message says what was expected."""


def visits_of(
    schema: FeatureSchema, columns: Mapping[str, Sequence[Any]], place: tuple[str, Sequence[str]]
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.float32]]:
    """The values of each row by name, (n,), and their contexts: the cells of all blocks side by side, (n, cells).

    Args:
        schema: the declared features.
        columns: raw values by name; (n,) each.
        place: the name of the table and those of its rows, for errors.

    Raises:
        LogError: a value does not fit its feature; the message names the row and the column.
    """
    table, row_names = place
    read = {name: READERS[schema.features[name].kind] for name in schema.layout.names or ()}
    visits, rows = np.empty(len(row_names), dtype=np.object_), []
    for row, row_name in enumerate(row_names):
        values = {}
        for name, reader in read.items():
            try:
                values[name] = reader(columns[name][row])
            except WrongValue as error:
                raise LogError(f"{table}, {row_name}, column {name}: expected {error}, got another value") from None
        try:
            rows.append(schema.encode(values).row)
        except FeatureError as error:
            raise LogError(f"{table}, {row_name}, column {error}") from None
        visits[row] = values
    blocks = schema.blocks(schema.read(b"".join(rows)))
    seen = np.zeros((len(rows), schema.cells), dtype=np.float32)
    np.add.at(seen, (np.arange(len(rows))[:, None], blocks.cells), blocks.values)
    return visits, seen


def absent(value: Any) -> bool:
    """Whether a cell is a missing value."""
    return value is None or (isinstance(value, str) and not value) or (isinstance(value, float) and math.isnan(value))


def truth_of(value: Any) -> bool | None:
    """The boolean that a cell holds; None if it holds none."""
    return value if isinstance(value, bool) else _TRUTH.get(value.lower()) if isinstance(value, str) else None


def _boolean(value: Any) -> bool | None:
    found = truth_of(value)
    if found is None and not absent(value):
        raise WrongValue("true or false")
    return found


def _number(value: Any) -> float | None:
    if absent(value):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise WrongValue("a number") from None
    if not math.isfinite(found):
        raise WrongValue("a finite number")
    return found


def _number_or_text(value: Any) -> float | str | None:
    try:
        return _number(value)
    except WrongValue:
        if isinstance(value, str):
            return value
        raise


def _text(value: Any) -> str | None:
    return None if absent(value) else _cut(str(value))


def _tags(value: Any) -> list[str] | None:
    if absent(value):
        return None
    if not isinstance(value, str):
        return [_cut(str(tag)) for tag in value]
    separator = next((one for one in TAG_SEPARATORS if one in value), TAG_SEPARATORS[0])
    return [_cut(tag) for tag in value.split(separator) if tag]


def _list(value: Any) -> list[Any] | None:
    if absent(value):
        return None
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise WrongValue("a list of numbers (Parquet or a data frame)")
    return list(value)


READERS: Mapping[str, Callable[[Any], Any]] = {
    "category": _text,
    "number": _number,
    "boolean": _boolean,
    "time_of_day": _number_or_text,
    "day_of_week": _number_or_text,
    "tags": _tags,
    "embedding": _list,
    "histogram": _list,
}
"""The function that reads a cell, by the kind of its feature; it raises `WrongValue`."""


def _cut(text: str) -> str:
    """The text, or, if it is too long for any vocabulary, another text that is in no vocabulary."""
    return text if len(text.encode()) <= LONGEST_TEXT else _TOO_LONG
