"""Converts and checks one column of a table; an error names the row of the first wrong value, and does not show it.

*Declared features.* Turns columns of a table into values of declared features, as applications send them, and into
contexts of a learner.

A cell of CSV is a text. Numbers are parsed from it; true, false, yes and no are booleans; tags are joined by ``|`` or
``;``. An empty cell, None and NaN are missing values; so is a usual marker, such as NA, n/a or \\N, where a number, a
time or a boolean is expected (as a category, NA may be a country). Lists, such as those of an embedding, come from
Parquet, JSON or data frames.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any
from unicodedata import normalize
from uuid import UUID

import numpy as np
import numpy.typing as npt

from hushstream.features.checks import LONGEST_TEXT, FeatureError
from hushstream.features.schema import FeatureSchema
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import TableMapping
from hushstream.schemas.rows import CONTROLS

Place = tuple[str, Sequence[str]]
"""The name of the file, and the name of each row of the current piece, for errors."""

_UTC = re.compile(r" ?(?:UTC|GMT)$", re.IGNORECASE)
_MILLISECONDS = {"s": 1000.0, "ms": 1.0}
_LATEST_MS = datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000.0


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
    except (ValueError, TypeError, OverflowError):
        _refuse(values, name, place, form, float)
    wrong = np.flatnonzero(~(np.isfinite(result) & (result >= least) & (result <= most)))
    if wrong.size:
        raise _error(place, int(wrong[0]), name, form, "nothing" if np.isnan(result[wrong[0]]) else "another number")
    return result


def rewards(values: Sequence[Any], name: str, place: Place) -> npt.NDArray[np.float64]:
    """Convert to rewards in [0, 1], (n,) float64; true and yes are 1, false and no are 0.

    Raises:
        LogError: a value is missing, or neither.
    """
    truths = [truth_of(value) for value in values]
    plain = [value if truth is None else float(truth) for value, truth in zip(values, truths, strict=True)]
    form = (
        "a reward from 0 to 1, true or false (write 0 where nothing came of it; of others take the lowest away, then "
        "divide by the largest)"
    )
    return numbers(plain, name, place, least=0.0, most=1.0, form=form)


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
    """Convert to names, (n,), none of them empty; see `id_of`.

    Raises:
        LogError: a value is missing or empty, or neither a text nor a number.
    """
    named = _names(values, name, place)
    if "" in named:
        raise _error(place, named.index(""), name, "a text", "nothing")
    return np.array(named, dtype=np.str_)


def users(values: Sequence[Any], name: str, place: Place) -> npt.NDArray[np.str_]:
    """Convert to names of users, (n,); who has none in a row is another user, named as the row.

    Raises:
        LogError: a value is neither a text nor a number.
    """
    _, row_names = place
    named = _names(values, name, place)
    unknown = [marks_nothing(one) or _NOBODY.fullmatch(one) is not None for one in named]
    return np.where(unknown, row_names, named)


def _names(values: Sequence[Any], name: str, place: Place) -> list[str]:
    for index, value in enumerate(values):
        if not absent(value) and (got := _instead_of_id(value)):
            form = f"an id as a text of at most {LONGEST_TEXT} bytes in one line, or as a whole number"
            raise _error(place, index, name, form, got)
    return ["" if absent(value) else id_of(value) for value in values]


def _instead_of_id(value: Any) -> str | None:
    """What a value is that is no id; None where it is one."""
    if not isinstance(value, str):
        return None if isinstance(value, int | float | UUID) and not isinstance(value, bool) else _kind(value)
    text = plain_text(value)
    if _ROUNDED.fullmatch(text):
        return "one that a spreadsheet has rounded: format its column as text"
    return "a control character" if CONTROLS.search(text) else None if _cut(text) == text else "a longer text"


def times_ms(values: Sequence[Any], name: str, place: Place, *, unit: str) -> npt.NDArray[np.int64]:
    """Convert to Unix milliseconds, (n,) int64.

    Timestamps of Parquet keep their own unit, whatever the mapping says.

    Raises:
        LogError: a value is missing or is no time in this unit.
    """
    if any(isinstance(value, date) for value in values):
        return np.array([_instant(value, index, name, place) for index, value in enumerate(values)])
    if unit != "iso":
        most = _LATEST_MS / _MILLISECONDS[unit]
        form = f"a time in {unit} since 1970, before the year 2100 (micro- and nanoseconds: divide them first)"
        count = numbers(values, name, place, least=-most, most=most, form=form)
        return np.round(count * _MILLISECONDS[unit]).astype(np.int64)
    parsed = np.empty(len(values), dtype=np.int64)
    for index, value in enumerate(values):
        try:
            written = str(value) if isinstance(value, int) else value
            parsed[index] = _instant(datetime.fromisoformat(_UTC.sub("+00:00", written)), index, name, place)
        except (TypeError, ValueError) as error:
            form = (
                "an ISO 8601 time such as 2026-03-28T22:00:00Z (28.03.2026 and 03/28/2026 are not read, nor names of "
                "zones but UTC; join a date and a time of day in one column)"
            )
            raise _error(place, index, name, form, _kind(value)) from error
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
    found = [number_of.get(one, -1) for one in _names(values, name, place)]
    if -1 in found:
        raise _error(place, found.index(-1), name, f"one of the {len(number_of)} arms of the mapping", "another")
    return np.array(found, dtype=np.int64)


def id_of(value: Any) -> str:
    """The name of an item or a user: a whole number of any type without a fraction, as data frames write 7 as 7.0.

    Blanks around a text do not count, and accents are one character each (Unicode's form NFC).
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = plain_text(str(value))
    return text[:-2] if _WHOLE.fullmatch(text) else text


def plain_text(text: str) -> str:
    """A text as it is compared: without blanks around it, in Unicode's form NFC, half a character as its escape."""
    return normalize("NFC", text.encode(errors="backslashreplace").decode()).strip()


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
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise _error(place, index, name, "a time", _kind(value))
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000.0)


def _refuse(values: Sequence[Any], name: str, place: Place, form: str, convert: Callable[[Any], object]) -> None:
    """Raise for the first value that does not convert."""
    for index, value in enumerate(values):
        try:
            convert(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise _error(place, index, name, form, _kind(value)) from error


def _kind(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    return "a text" if isinstance(value, str) else "another number" if type(value) is int else type(value).__name__


def _error(place: Place, index: int, name: str, expected: str, got: str) -> LogError:
    path, row_names = place
    return LogError(f"{path}, {row_names[index]}, column {name}: expected {expected}, got {got}")


TAG_SEPARATORS = ("|", ";")
_TRUTH = {"true": True, "false": False, "yes": True, "no": False, "y": True, "n": False, "t": True, "f": False}
_MARKER = re.compile(
    r"[(\[<]?(?:na|null|none|nil|not set|missing|unknown|undefined)[)\]>]?|#?n/?a(?: n/a)?|nat|n\.a\.|-?nan(?:\(ind\))?"
    r'|\\n|\?|--?|[–—]|\.|""|[-+]?inf(?:inity)?|-?1\.#(?:ind|inf|qnan)|#(?:n/v|div/0|value|ref|num|name)[!?]?',
    re.IGNORECASE,
)
"""What tools write for a missing value."""
_NOBODY = re.compile(r"anonymous|guest|-1|0{8}-?(?:0{4}-?){3}0{12}", re.IGNORECASE)
"""What tools write for a visitor whom they do not know; the zeros are the advertising id of all who refuse one."""
_ROUNDED = re.compile(r"\d(?:[.,]\d+)?E\+\d+", re.ASCII)
_SECONDS = re.compile(r"\d{1,2}:[0-5]\d:[0-5]\d(?:\.\d+)?", re.ASCII)
_WHOLE = re.compile(r"\d+\.0", re.ASCII)
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
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def marks_nothing(value: Any) -> bool:
    """Whether a cell is a missing value where no text is expected: it is absent, or a usual marker."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return absent(value) or (isinstance(value, str) and _MARKER.fullmatch(value.strip()) is not None)


def truth_of(value: Any) -> bool | None:
    """The boolean that a cell holds; None if it holds none."""
    return value if isinstance(value, bool) else _TRUTH.get(value.strip().lower()) if isinstance(value, str) else None


def _boolean(value: Any) -> bool | None:
    found = truth_of(value)
    if found is None and not marks_nothing(value):
        raise WrongValue("true or false")
    return found


def _number(value: Any) -> float | None:
    if marks_nothing(value):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise WrongValue("a number such as 1234.5, without commas or a currency") from None
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


def _time_of_day(value: Any) -> float | str | None:
    if isinstance(value, str) and _SECONDS.fullmatch(value.strip()):
        hours, minutes, seconds = map(float, value.split(":"))
        return hours + minutes / 60 + seconds / 3600
    return _number_or_text(value)


def _text(value: Any) -> str | None:
    if isinstance(value, bytes | dict | list):
        raise WrongValue("a text or a number")
    return None if absent(value) else _cut(plain_text(str(value))) or None


def _tags(value: Any) -> list[str] | None:
    if absent(value):
        return None
    if not isinstance(value, str):
        return [_cut(plain_text(str(tag))) for tag in value]
    separator = next((one for one in TAG_SEPARATORS if one in value), TAG_SEPARATORS[0])
    return [_cut(tag) for one in value.split(separator) if (tag := plain_text(one))]


def _list(value: Any) -> list[Any] | None:
    if absent(value):
        return None
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise WrongValue("a list of numbers (Parquet, JSON or a data frame)")
    return list(value)


READERS: Mapping[str, Callable[[Any], Any]] = {
    "category": _text,
    "number": _number,
    "boolean": _boolean,
    "time_of_day": _time_of_day,
    "day_of_week": _number_or_text,
    "tags": _tags,
    "embedding": _list,
    "histogram": _list,
}
"""The function that reads a cell, by the kind of its feature; it raises `WrongValue`."""


def _cut(text: str) -> str:
    """The text, or, if it is too long for any vocabulary, another text that is in no vocabulary."""
    return text if len(text.encode()) <= LONGEST_TEXT else _TOO_LONG
