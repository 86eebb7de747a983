"""A first declaration of features for somebody's table: each column's kind, and what of it was taken from rows.

Ranges, vocabularies, limits of tags and the click rate come from rows of persons, so the draft marks them as private
(`hushstream.features.confirmation`): nothing takes it before its owner has confirmed each of them as public.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hushstream.features.checks import LONGEST_TEXT
from hushstream.features.confirmation import FROM_ROWS, without_marks
from hushstream.features.kinds import Outcome
from hushstream.features.schema import FeatureSchema, declare
from hushstream.replay.logged.drafts.mapping import (
    MEANT,
    MOST_CATEGORIES,
    ROWS,
    bounds_of,
    delimiter_of,
    first_of,
    flow_yaml,
    numbers_in,
)
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.table import PARQUET_SUFFIXES, columns_in, read_chunks

_TRUTH = {"true": True, "false": False, "yes": True, "no": False}
_TAG_SEPARATORS = ("|", ";")
_HOURS, _DAYS = ("hour", "hour_of_day", "time_of_day"), ("day_of_week", "weekday", "dayofweek")
_MOST_DISTINCT = 0.5
"""A text column with more different values than this share of its rows holds ids."""

_SPAN_OF_LOG = 300.0
_LEFT_OUT_ENDS = 0.01
"""Share of the rows beyond each end of a drafted range: a range up to the largest value shows that one person."""

_LONGEST_VECTOR = 1024
_TOO_LONG = "\x00"


class ColumnShares(NamedTuple):
    """Of one feature, the shares of all rows; exact figures on rows, for their owner alone."""

    missing: float
    unknown: float
    clipped: float


@dataclass(frozen=True, slots=True)
class FeatureDraft:
    """What was drafted.

    Attributes:
        declaration: ``features`` and, where a column of rewards was found, ``click_rate``; with marks.
        shares: by feature, over the whole file.
        clipped_rows: the share of rows with a clipped value.
        left_out: columns that no kind fits, with the reason.
        row_bytes: of one visit on the wire.
    """

    declaration: Mapping[str, Any]
    shares: Mapping[str, ColumnShares]
    clipped_rows: float
    left_out: Mapping[str, str]
    row_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **self.declaration,
            "shares": {name: one._asdict() for name, one in self.shares.items()},
            "clipped_rows": self.clipped_rows,
            "left_out": dict(self.left_out),
            "row_bytes": self.row_bytes,
        }

    def text(self) -> str:
        """The declaration as YAML, with what its owner has to decide."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# Drafted from rows. What `from_rows` names is private: put public values in its place, or decide that"
        yield "# it is public; then delete its name there. No deployment is prepared before. Comments are private, too."
        if "click_rate" in self.declaration:
            yield f"click_rate: {self.declaration['click_rate']}"
            yield f"{FROM_ROWS}: {flow_yaml(self.declaration[FROM_ROWS])}"
        yield f"# {self.row_bytes} bytes a visit; a value is clipped in {self.clipped_rows:.1%} of the rows"
        yield "features:"
        for name, content in self.declaration["features"].items():
            one = self.shares[name]
            said = f"missing {one.missing:.1%}, unknown {one.unknown:.1%}, clipped {one.clipped:.1%}"
            yield f"  {flow_yaml(name)}:   # {said}"
            yield from (f"    {key}: {flow_yaml(value)}" for key, value in content.items())
        yield from (f"# {name}: left out, {reason}" for name, reason in self.left_out.items())


class _Column(NamedTuple):
    """A drafted column: its declaration, and how its raw values become what the feature takes."""

    content: dict[str, Any]
    convert: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Columns:
    columns: tuple[str, ...]
    delimiter: str = ","


def draft_features(path: Path) -> FeatureDraft:
    """A declaration of features for a CSV or Parquet table.

    Kinds are told from its first 20,000 rows, shares are of all rows.

    Raises:
        LogError: the file cannot be read, has no rows, or no column that could be a feature.
    """
    delimiter = "," if path.suffix.lower() in PARQUET_SUFFIXES else delimiter_of(path)
    names = tuple(columns_in(path, delimiter))
    meant = {key: first_of(names, among) for key, among in MEANT.items()}
    wanted = _Columns(names, delimiter)
    head = next(read_chunks(path, wanted, ROWS))
    drafted, left_out = dict[str, _Column](), dict[str, str]()
    for name in names:
        if name in meant.values():
            continue
        column = _drafted(name, head.columns[name])
        if isinstance(column, str):
            left_out[name] = column
        else:
            drafted[name] = column
    if not drafted:
        raise LogError(f"{path}: expected a column that can be a feature, got none")
    declaration: dict[str, Any] = {"features": {name: one.content for name, one in drafted.items()}}
    if meant["reward"] is not None and (rewards := numbers_in(head.columns[meant["reward"]])):
        rate = sum(value > 0 for value in rewards) / len(rewards)
        declaration = {"click_rate": round(rate, 3), FROM_ROWS: ["click_rate"], **declaration}
    schema = declare(without_marks(declaration["features"]))
    shares, clipped = _shares(schema, drafted, path, wanted)
    return FeatureDraft(declaration, shares, clipped, left_out, schema.row_bytes)


def _shares(
    schema: FeatureSchema, drafted: Mapping[str, _Column], path: Path, wanted: _Columns
) -> tuple[dict[str, ColumnShares], float]:
    counts, rows, clipped = {name: Counter[Outcome]() for name in drafted}, 0, 0
    for chunk in read_chunks(path, wanted):
        columns = {name: list(map(one.convert, chunk.columns[name])) for name, one in drafted.items()}
        for place in range(len(chunk.row_names)):
            outcomes = schema.encode({name: values[place] for name, values in columns.items()}).outcomes
            for name, outcome in outcomes.items():
                counts[name][outcome] += 1
            clipped += Outcome.CLIPPED in outcomes.values()
        rows += len(chunk.row_names)
    found = {
        name: ColumnShares(one[Outcome.MISSING] / rows, one[Outcome.UNKNOWN] / rows, one[Outcome.CLIPPED] / rows)
        for name, one in counts.items()
    }
    return found, clipped / rows


def _drafted(name: str, values: Sequence[Any]) -> _Column | str:
    """The column as a feature, or why it is none."""
    known = [value for value in values if not _absent(value)]
    if not known:
        return "as it holds nothing"
    if not all(letter.isalnum() or letter in "-_" for letter in name) or not name.isascii() or len(name) > 64:
        return "as its name is not of 1 to 64 letters, digits, '-' and '_': rename it"
    if isinstance(known[0], Sequence) and not isinstance(known[0], str):
        return _of_lists(known)
    if all(_truth(value) is not None for value in known):
        return _Column({"kind": "boolean"}, _truth)
    numbers = numbers_in([value for value in known if not isinstance(value, bool)])
    if numbers:
        return _of_numbers(name, numbers)
    if any(not isinstance(value, str) for value in known):
        return "as it holds neither texts nor numbers"
    return _of_texts(name, known)


def _of_numbers(name: str, numbers: list[float]) -> _Column | str:
    if name.lower() in _HOURS and min(numbers) >= 0 and max(numbers) <= 24:
        return _Column({"kind": "time_of_day"}, _number)
    if name.lower() in _DAYS and set(numbers) <= set(range(1, 8)):
        return _Column({"kind": "day_of_week"}, _number)
    if len(set(numbers)) == 1:
        return "as all rows hold one number"
    ordered = sorted(numbers)
    cut = int(_LEFT_OUT_ENDS * len(ordered))
    low, high = bounds_of(ordered[cut : len(ordered) - cut])
    content: dict[str, Any] = {"kind": "number", "range": [low, high]}
    smallest = ordered[cut]
    if smallest > 0 and ordered[-1 - cut] / smallest > _SPAN_OF_LOG:
        content = {"kind": "number", "range": [10.0 ** math.floor(math.log10(smallest)), high], "scale": "log"}
    return _Column({**content, FROM_ROWS: ["range"]}, _number)


def _of_texts(name: str, known: list[str]) -> _Column | str:
    if name.lower() in _DAYS:
        return _Column({"kind": "day_of_week"}, _text)
    for separator in _TAG_SEPARATORS:
        if any(separator in value for value in known):
            return _tags([value.split(separator) for value in known], partial(_split, separator))
    counts = Counter(value for value in known if len(value.encode()) <= LONGEST_TEXT)
    if not counts or len(counts) > max(MOST_CATEGORIES, _MOST_DISTINCT * len(known)):
        return "as nearly every row holds another text: an id says nothing of the next visitor"
    content = {"kind": "category", "vocabulary": _frequent(counts), FROM_ROWS: ["vocabulary"]}
    return _Column(content, _text)


def _of_lists(known: list[Sequence[Any]]) -> _Column | str:
    entries = [entry for value in known for entry in value]
    if entries and all(isinstance(entry, str) for entry in entries):
        return _tags(known, lambda value: None if _absent(value) else [_cut(one) for one in value])
    lengths = {len(value) for value in known}
    if len(lengths) == 1 and 0 < len(known[0]) <= _LONGEST_VECTOR and numbers_in(entries):
        return _Column(
            {"kind": "embedding", "dimension": len(known[0])}, lambda value: None if _absent(value) else list(value)
        )
    return "as its lists are neither of texts nor of equally many numbers"


def _tags(known: Sequence[Sequence[str]], convert: Callable[[Any], Any]) -> _Column | str:
    counts = Counter(tag for value in known for tag in set(value) if tag and len(tag.encode()) <= LONGEST_TEXT)
    if not counts:
        return "as it holds no tags"
    vocabulary = _frequent(counts)
    sizes = sorted(len({tag for tag in value if tag in vocabulary}) for value in known)
    most = max(1, sizes[min(len(sizes) - 1, int((1 - _LEFT_OUT_ENDS) * len(sizes)))])
    return _Column({"kind": "tags", "vocabulary": vocabulary, "most": most, FROM_ROWS: ["vocabulary", "most"]}, convert)


def _frequent(counts: Counter[str]) -> list[str]:
    """The most frequent texts, in the order of their names: that of their counts would say more of the rows."""
    return sorted(text for text, _ in counts.most_common(MOST_CATEGORIES))


def _absent(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else _TRUTH.get(value.lower()) if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    """A number, or None of what is absent or none (rows behind the first ones may hold anything)."""
    try:
        found = math.nan if _absent(value) else float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _text(value: Any) -> str | None:
    return None if _absent(value) else _cut(str(value))


def _split(separator: str, value: Any) -> list[str] | None:
    return None if _absent(value) else [_cut(tag) for tag in str(value).split(separator) if tag]


def _cut(text: str) -> str:
    """A text, or one that is in no vocabulary in place of one that is too long for any."""
    return text if len(text.encode()) <= LONGEST_TEXT else _TOO_LONG
