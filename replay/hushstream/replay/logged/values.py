"""Converts and checks one column of a table; an error names the row of the first wrong value, and does not show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import TableMapping

Place = tuple[str, Sequence[str]]
"""The name of the file, and the name of each row of the current piece, for errors."""

_MILLISECONDS = {"s": 1000.0, "ms": 1.0}


def numbers(
    values: Sequence[Any], name: str, place: Place, *, least: float, most: float, form: str | None = None
) -> npt.NDArray[np.float64]:
    """Convert to finite numbers within bounds, (n,) float64.

    Raises:
        LogError: a value is missing, is no number, is not finite or is out of bounds.
    """
    if form is None:
        form = "a finite number" if np.isinf(most) else f"a number in [{least:g}, {most:g}]"
    try:
        result = np.array(values, dtype=np.float64)
    except (ValueError, TypeError):
        _refuse(values, name, place, form, float)
    wrong = np.flatnonzero(~(np.isfinite(result) & (result >= least) & (result <= most)))
    if wrong.size:
        raise _error(place, int(wrong[0]), name, form, "another number")
    return result


def integers(values: Sequence[Any], name: str, place: Place) -> npt.NDArray[np.int64]:
    """Convert to integers, (n,) int64; 3 and 3.0 are integers, 3.5 is not.

    Raises:
        LogError: a value is missing or is no integer.
    """
    result = numbers(values, name, place, least=-(2.0**53), most=2.0**53, form="an integer")
    wrong = np.flatnonzero(result != np.floor(result))
    if wrong.size:
        raise _error(place, int(wrong[0]), name, "an integer", "a fraction")
    return result.astype(np.int64)


def texts(values: Sequence[Any], name: str, place: Place) -> npt.NDArray[np.str_]:
    """Convert to non-empty texts, (n,); integers are written in decimal.

    Raises:
        LogError: a value is missing or empty.
    """
    for index, value in enumerate(values):
        if value is None or value == "":
            raise _error(place, index, name, "a text", "nothing")
    return np.array([str(value) for value in values], dtype=np.str_)


def times_ms(values: Sequence[Any], name: str, place: Place, *, unit: str) -> npt.NDArray[np.int64]:
    """Convert to Unix milliseconds, (n,) int64.

    Timestamps of Parquet keep their own unit, whatever the mapping says.

    Raises:
        LogError: a value is missing or is no time in this unit.
    """
    if any(isinstance(value, datetime) for value in values):
        return np.array([_instant(value, index, name, place) for index, value in enumerate(values)])
    if unit != "iso":
        count = numbers(values, name, place, least=-(2.0**52), most=2.0**52, form=f"a time in {unit}")
        return np.round(count * _MILLISECONDS[unit]).astype(np.int64)
    parsed = np.empty(len(values), dtype=np.int64)
    for index, value in enumerate(values):
        try:
            parsed[index] = _instant(datetime.fromisoformat(value), index, name, place)
        except (TypeError, ValueError) as error:
            raise _error(place, index, name, "an ISO 8601 time", _kind(value)) from error
    return parsed


def arm_numbers(values: Sequence[Any], name: str, place: Place, mapping: TableMapping) -> npt.NDArray[np.int64]:
    """Convert to arm numbers, (n,) int64 in 0 .. K - 1.

    Raises:
        LogError: a value is none of the mapping's arms.
    """
    if isinstance(mapping.arms, int):
        result = integers(values, name, place)
        wrong = np.flatnonzero((result < 0) | (result >= mapping.arms))
        if wrong.size:
            raise _error(place, int(wrong[0]), name, f"an arm in 0..{mapping.arms - 1}", "another number")
        return result
    number_of = {arm: number for number, arm in enumerate(mapping.arms)}
    found = [number_of.get(str(value), -1) for value in values]
    if -1 in found:
        raise _error(place, found.index(-1), name, f"one of the {len(number_of)} arms of the mapping", "another")
    return np.array(found, dtype=np.int64)


def category_numbers(values: Sequence[Any], name: str, place: Place, known: Sequence[str]) -> npt.NDArray[np.int64]:
    """Convert names to their numbers in ``known``, (n,) int64.

    Raises:
        LogError: a value is none of them.
    """
    number_of = {category: number for number, category in enumerate(known)}
    found = [number_of.get(str(value), -1) for value in values]
    if -1 in found:
        raise _error(place, found.index(-1), name, f"one of the {len(known)} categories of the mapping", "another")
    return np.array(found, dtype=np.int64)


def eligible_arms(values: Sequence[Any], name: str, place: Place, mapping: TableMapping) -> npt.NDArray[np.bool_]:
    """Convert lists of arms to (n, K) booleans.

    Raises:
        LogError: a list is missing or empty, or contains something that is no arm.
    """
    allowed = np.zeros((len(values), mapping.arm_count), dtype=np.bool_)
    path, row_names = place
    for index, value in enumerate(values):
        entries = value.split(mapping.eligible_separator) if isinstance(value, str) else value
        if not entries or entries == [""]:
            raise _error(place, index, name, "at least one arm", "nothing")
        row = (path, [row_names[index]] * len(entries))
        allowed[index, arm_numbers(entries, name, row, mapping)] = True
    return allowed


def _instant(value: Any, index: int, name: str, place: Place) -> int:
    if not isinstance(value, datetime):
        raise _error(place, index, name, "a time", _kind(value))
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000.0)


def _refuse(values: Sequence[Any], name: str, place: Place, form: str, convert: Callable[[Any], object]) -> None:
    """Raise for the first value that does not convert."""
    for index, value in enumerate(values):
        try:
            convert(value)
        except (ValueError, TypeError) as error:
            raise _error(place, index, name, form, _kind(value)) from error


def _kind(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    return "a text" if isinstance(value, str) else type(value).__name__


def _error(place: Place, index: int, name: str, expected: str, got: str) -> LogError:
    path, row_names = place
    return LogError(f"{path}, {row_names[index]}, column {name}: expected {expected}, got {got}")
