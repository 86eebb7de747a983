"""From columns of a table to values of declared features, as applications tell them, and to what a learner sees.

A cell of CSV is a text: a number is read from it, true, false, yes and no are booleans, and tags are joined by ``|`` or
``;``. An empty cell, None and NaN are missing. Lists, as those of an embedding, come from Parquet or data frames alone.
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
    """A cell that no value of its feature's kind can be read from; its text says what was expected."""


def visits_of(
    schema: FeatureSchema, columns: Mapping[str, Sequence[Any]], place: tuple[str, Sequence[str]]
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.float32]]:
    """The values of each row by name, (n,), and what a learner sees of them: all blocks side by side, (n, cells).

    Args:
        schema: the declared features.
        columns: raw values by name; (n,) each.
        place: the table, and how errors name each row.

    Raises:
        LogError: a value is none of its feature's; names the row and the column.
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
    """Whether a cell says nothing."""
    return value is None or (isinstance(value, str) and not value) or (isinstance(value, float) and math.isnan(value))


def truth_of(value: Any) -> bool | None:
    """A boolean; None where it is none."""
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
"""What reads a cell, by the kind of its feature; raises `WrongValue`."""


def _cut(text: str) -> str:
    """A text, or one that is in no vocabulary in place of one that is too long for any."""
    return text if len(text.encode()) <= LONGEST_TEXT else _TOO_LONG
