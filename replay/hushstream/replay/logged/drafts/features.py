"""Drafts the declaration of features for a user's own table: the kind of each column, and marks on private values.

Ranges, vocabularies, limits of tags and the click rate are computed from rows of persons, so the draft marks them as
private (`hushstream.features.checks`). No command prepares a deployment from it before its owner has confirmed
each mark as public.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

from hushstream.features.checks import FROM_ROWS, LONGEST_TEXT, without_marks
from hushstream.features.kinds import Outcome
from hushstream.features.schema import MOST_FEATURES, FeatureSchema, declare
from hushstream.replay.logged.drafts.mapping import (
    MOST_CATEGORIES,
    MOST_LEVELS,
    ROWS,
    Columns,
    bounds_of,
    delimiter_of,
    flow_yaml,
    is_iso,
    levels_of,
    meanings_of,
    numbers_in,
    perhaps_rewards,
    rewards_in,
)
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import TableMapping
from hushstream.replay.logged.table import Source, columns_in, once, read_chunks
from hushstream.replay.logged.values import (
    READERS,
    TAG_SEPARATORS,
    WrongValue,
    absent,
    marks_nothing,
    plain_text,
    truth_of,
)

_HOURS, _DAYS = ("hour", "hour_of_day", "time_of_day"), ("day_of_week", "weekday", "dayofweek")
_LEAST_KNOWN = 0.5
"""A text column holds ids or free text if its most frequent values cover less than this share of its rows."""

_IDS = (
    "as its values are ids or free text, which do not help to predict for the next visitor (if they say who "
    "visited, write the column as `user` into the mapping)"
)

_ID = re.compile(r"(?i:(?:^|[^a-z])(?:id|uuid)$)|[a-z](?:Id|ID|Uuid|UUID)$", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CURRENCY = r"[$¢£¤¥\u20a0-\u20cf]"
_MONEY = re.compile(
    rf"(?:{_CURRENCY}|[A-Z]{{3}} |[Rr]s\.?|kr\.?)? ?\(?[-−]?"
    r"\d+(?:(?:[.,'’ \xa0\u202f]\d{3})+|(?:,\d\d)+,\d{3})?(?:[.,]\d+)?"
    rf"(?: ?(?:{_CURRENCY}|[%‰°]|[^\W\d_]{{1,4}}\.?))?\)?"
    r"|0x[\dA-Fa-f]+|\d+/\d+|\d?\d:\d\d(?::\d\d)? ?[AaPp]\.?[Mm]\.?|P(?=T?\d)(?:\d+D)?T?(?:\d+[HMS])*"
)
"""A number, with a decimal comma, a separator of thousands, a currency, a unit or in another form."""
_CODE = re.compile(r"0\d+", re.ASCII)
"""A postal code or another name made of digits: a number would lose its first one."""
_JSON = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)
_DATED = re.compile(
    r"\d{4}[-/]\d\d(?:[-/]\d\d.*)?|\d?\d[./-]\d?\d[./-]\d{4}.*|[A-Z][a-z]{2},? (?=.*\d:\d\d).*\b\d{4}\b.*"
)
_LEAST_NUMBERS = 0.9
"""With such a share of numbers, a column of texts is a column of numbers with mistakes."""
_CLOCK = re.compile(r"\d{1,2}:[0-5]\d(?::[0-5]\d(?:\.\d+)?)?", re.ASCII)
_LEAST_COUNTED = 10
"""So many rows are in order by chance once in three million tables."""
_ROWS_AN_ITEM = 10
"""Rows per item that are needed to see that a column depends on the item shown, and not by chance."""

_SPAN_OF_LOG = 300.0
_LEFT_OUT_ENDS = 0.01
"""Share of the rows beyond each end of a drafted range.

A range up to the largest value would reveal one person's value.
"""

_LONGEST_VECTOR = 1024
_MANY_TAGS, _REDUNDANCY = 12, 0.2
"""With this many tags per value most occur together, as words of a text do (`hushstream.features.kinds.Tags`)."""


_DRAFTED = "# Drafted from rows. Values named in `from_rows` are private: put public ones in their place, or decide"
_DELETE = "# that they are public; then delete their names. `prepare` refuses before. Comments are private, too."
NOTES_ON_MARKS = (f"{FROM_ROWS}:", _DRAFTED, _DELETE)
"""What begins the lines of a draft that go once its owner has confirmed all values."""


class ColumnShares(NamedTuple):
    """The shares of missing, unknown and clipped values of a feature: exact figures on rows, for their owner alone."""

    missing: float
    unknown: float
    clipped: float


@dataclass(frozen=True, slots=True)
class FeatureDraft:
    """A draft of a declaration.

    Attributes:
        declaration: ``features`` and, where a column of rewards was found, ``click_rate`` and (of graded ones)
            ``reward_levels``, with their marks.
        shares: shares by feature, over the whole file.
        clipped_rows: the share of rows with a clipped value.
        left_out: columns that are no feature, with the reason.
        row_bytes: bytes of one visit on the wire.
        perhaps_rewards: features that may be the reward, which no column's name says.
    """

    declaration: Mapping[str, Any]
    shares: Mapping[str, ColumnShares]
    clipped_rows: float
    left_out: Mapping[str, str]
    row_bytes: int
    perhaps_rewards: frozenset[str]

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
        """The declaration as YAML, with comments on what its owner has to decide."""
        return "\n".join(self._lines()) + "\n"

    def of_features(self) -> Iterator[str]:
        """The YAML lines of its features, with comments on what the owner has to decide."""
        yield _DRAFTED
        yield _DELETE
        yield f"# {self.row_bytes} bytes a visit; a value is clipped in {self.clipped_rows:.1%} of the rows"
        yield "features:   # known before an item is shown; delete those that are known only afterwards"
        for name, content in self.declaration["features"].items():
            one = self.shares[name]
            said = f"missing {one.missing:.1%}, unknown {one.unknown:.1%}, clipped {one.clipped:.1%}"
            perhaps = "? if this is the reward, delete it here; " * (name in self.perhaps_rewards)
            yield f"  {flow_yaml(name)}:   # {perhaps}{said}"
            yield from (f"    {key}: {flow_yaml(value)}" for key, value in content.items())
        yield from (f"# {' '.join(name.split())}: left out, {reason}" for name, reason in self.left_out.items())

    def _lines(self) -> Iterator[str]:
        for key in ("click_rate", "reward_levels", FROM_ROWS):
            if key in self.declaration:
                yield f"{key}: {flow_yaml(self.declaration[key])}"
        yield from self.of_features()


def draft_features(path: Source, mapping: TableMapping | None = None) -> FeatureDraft:
    """Draft a declaration of features for a CSV, Parquet or JSON table or a query.

    The kinds are found from its first 20,000 rows; the shares are computed over all rows. A mapping says what the
    columns mean; without one their names do.

    Raises:
        LogError: the file cannot be read, has no rows, or no column that could be a feature.
    """
    delimiter = delimiter_of(path) if mapping is None else mapping.delimiter
    there = columns_in(path, delimiter)
    names = tuple(once(there))
    wanted = Columns(names if mapping is None else tuple(dict.fromkeys((*names, *mapping.columns))), delimiter)
    head = next(read_chunks(path, wanted, ROWS))
    meant = meanings_of(names, head.columns) if mapping is None else mapping.meanings
    drafted = dict[str, dict[str, Any]]()
    left_out = {name: "as two columns have this name: rename one" for name in there if name not in names}
    for name in names:
        if name in meant.values():
            continue
        values = head.columns[name]
        column = _known_too_late(values, head.columns, meant) or _drafted(name, values)
        if len(drafted) == MOST_FEATURES and not isinstance(column, str):
            column = f"as a deployment has {MOST_FEATURES} features at most"
        if isinstance(column, str):
            left_out[name] = column
        else:
            drafted[name] = column
    if not drafted:
        reasons = "; ".join(f"{name!r} is left out {reason}" for name, reason in islice(left_out.items(), 5))
        raise LogError(f"{path}: expected a column that can be a feature, got none: {reasons or 'no further column'}")
    declaration: dict[str, Any] = {"features": drafted}
    if meant["reward"] is not None and (rewards := rewards_in(head.columns[meant["reward"]])):
        rate = sum(value > 0 for value in rewards) / len(rewards)
        levels = levels_of(rewards) or MOST_LEVELS
        graded = {"reward_levels": levels} if levels > 1 else {}
        found = {"click_rate": round(rate, 3), **graded}
        declaration = {**found, FROM_ROWS: list(found), **declaration}
    schema = declare(without_marks(declaration["features"]))
    shares, clipped = _shares(schema, path, wanted)
    perhaps = frozenset(perhaps_rewards(names, head.columns, meant)) if mapping is None else frozenset[str]()
    return FeatureDraft(declaration, shares, clipped, left_out, schema.row_bytes, perhaps)


def _shares(schema: FeatureSchema, path: Source, wanted: Columns) -> tuple[dict[str, ColumnShares], float]:
    read = {name: partial(_read, READERS[one.kind]) for name, one in schema.features.items()}
    counts, rows, clipped = {name: Counter[Outcome]() for name in read}, 0, 0
    for chunk in read_chunks(path, wanted):
        columns = {name: list(map(reader, chunk.columns[name])) for name, reader in read.items()}
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


def _read(reader: Callable[[Any], Any], value: Any) -> Any:
    """The value of a cell, or None if it does not fit the feature's kind, which only the first rows decided."""
    try:
        return reader(value)
    except WrongValue:
        return None


def _known_too_late(
    values: Sequence[Any], columns: Mapping[str, Sequence[Any]], meant: Mapping[str, str | None]
) -> str | None:
    """The reason why a column is not known before an item is shown; None where it may be known."""
    arm, reward = meant["arm"], meant["reward"]
    if arm is not None:
        pairs = set(zip(map(str, columns[arm]), map(str, values), strict=True))
        items, contents = ({pair[place] for pair in pairs} for place in (0, 1))
        if len(pairs) == len(items) and len(contents) > 1 and len(values) >= _ROWS_AN_ITEM * len(items):
            return "as it depends on the item shown: it describes the item, not the visit (items.features)"
    if reward is not None:
        rewarded = [truth_of(value) is not False and _says(value) for value in columns[reward]]
        with_content = [place for place, value in enumerate(values) if _says(value)]
        if 0 < len(with_content) < len(values) and all(rewarded[place] for place in with_content):
            return "as it is empty or 0 wherever the reward is 0: it is known only afterwards"
    return None


def _says(value: Any) -> bool:
    """Whether a cell is neither missing nor 0."""
    return not absent(value) and numbers_in([value]) != [0.0]


def _drafted(name: str, values: Sequence[Any]) -> dict[str, Any] | str:
    """The declaration of a column as a feature, or the reason why it is none."""
    known = [plain_text(value) if isinstance(value, str) else value for value in values if not absent(value)]
    if not known:
        return "as all its values are missing"
    if _counts_rows(values):
        return "as it numbers the rows"
    if not _NAME.fullmatch(name) or name == FROM_ROWS:
        return f"as its name is {FROM_ROWS}, or not of 1 to 64 letters, digits, '-' and '_': rename it"
    lists = [isinstance(value, Sequence) and not isinstance(value, str) for value in known]
    if any(lists):
        return _of_lists(known) if all(lists) else "as only some of its values are lists"
    said = [value for value in known if not marks_nothing(value)]
    if said and None not in (truths := {truth_of(value) for value in said}):
        return {"kind": "boolean"} if len(truths) > 1 else "as its values are all the same"
    numbers = numbers_in([value for value in said if not isinstance(value, bool)])
    if numbers and _ID.search(name) and all(value.is_integer() for value in numbers):
        return _IDS
    if any(isinstance(value, str) and _CODE.fullmatch(value.strip()) for value in said):
        return _of_texts(name, [str(value) for value in known])
    if numbers:
        return _of_numbers(name, numbers)
    if len(said) < len(known) and not said:
        return "as all its values are missing"
    if any(not isinstance(value, str) for value in known):
        return "as it holds neither texts nor numbers"
    return _of_texts(name, known)


def _counts_rows(values: Sequence[Any]) -> bool:
    """Whether a column counts the rows, as the index of a data frame does, of which rows were left out or shuffled."""
    numbers = numbers_in(values)
    ordered = sorted(numbers)
    if len(numbers) < _LEAST_COUNTED or not all(one < after and one.is_integer() for one, after in pairwise(ordered)):
        return False
    return numbers == ordered or ordered[-1] - ordered[0] == len(ordered) - 1


def _of_numbers(name: str, numbers: list[float]) -> dict[str, Any] | str:
    if name.lower() in _HOURS and min(numbers) >= 0 and max(numbers) <= 24:
        return {"kind": "time_of_day"}
    if name.lower() in _DAYS and set(numbers) <= set(range(1, 8)):
        return {"kind": "day_of_week"}
    if len(set(numbers)) == 1:
        return "as all rows have the same number"
    ordered = sorted(numbers)
    cut = int(_LEFT_OUT_ENDS * len(ordered))
    low, high = bounds_of(ordered[cut : len(ordered) - cut])
    whole = [int(end) if float(end).is_integer() else end for end in (low, high)]
    content: dict[str, Any] = {"kind": "number", "range": whole}
    smallest = ordered[cut]
    if smallest > 0 and ordered[-1 - cut] / smallest > _SPAN_OF_LOG:
        content = {"kind": "number", "range": [10.0 ** math.floor(math.log10(smallest)), high], "scale": "log"}
    return {**content, FROM_ROWS: ["range"]}


def _of_texts(name: str, known: list[str]) -> dict[str, Any] | str:
    if name.lower() in _DAYS:
        return {"kind": "day_of_week"}
    if all(map(_CLOCK.fullmatch, known)):
        return {"kind": "time_of_day"}
    if all(map(_JSON.fullmatch, known)):
        return "as its cells hold JSON: write a log with lists as JSON lines or Parquet, or join tags by |"
    if all(map(_DATED.fullmatch, known)):
        return "as it holds points in time: declare hour, weekday or age"
    written = [value for value in known if not marks_nothing(value)]
    coded = any(map(_CODE.fullmatch, known))
    if written and not coded and all(map(_MONEY.fullmatch, written)):
        return "as its numbers have a comma, a unit or a currency: write plain ones such as 1234.5"
    if not coded and sum(bool(numbers_in([value])) for value in known) / len(known) >= _LEAST_NUMBERS:
        return "as it holds numbers but for a few texts, which are no usual marker of a missing value: correct these"
    if any(separator in value for value in known for separator in TAG_SEPARATORS):
        return _tags([READERS["tags"](value) for value in known])
    counts = Counter(value for value in known if len(value.encode()) <= LONGEST_TEXT)
    if sum(count for _, count in counts.most_common(MOST_CATEGORIES)) < _LEAST_KNOWN * len(known):
        return "as it holds points in time: declare hour, weekday or age" if all(map(is_iso, known)) else _IDS
    return {"kind": "category", "vocabulary": _frequent(counts), FROM_ROWS: ["vocabulary"]}


def _of_lists(known: list[Sequence[Any]]) -> dict[str, Any] | str:
    entries = [entry for value in known for entry in value]
    if entries and all(isinstance(entry, str) for entry in entries):
        return _tags(known)
    lengths = {len(value) for value in known}
    if len(lengths) == 1 and 0 < len(known[0]) <= _LONGEST_VECTOR and numbers_in(entries):
        return {"kind": "embedding", "dimension": len(known[0])}
    return "as its lists hold neither texts nor equally many numbers"


def _tags(known: Sequence[Sequence[str]]) -> dict[str, Any] | str:
    tags = (tag for value in known for tag in set(value))
    counts = Counter(tag for tag in tags if tag.strip("\0") and len(tag.encode()) <= LONGEST_TEXT)
    if not counts:
        return "as it holds no tags"
    vocabulary = _frequent(counts)
    sizes = sorted(len({tag for tag in value if tag in vocabulary}) for value in known)
    most = max(1, sizes[min(len(sizes) - 1, int((1 - _LEFT_OUT_ENDS) * len(sizes)))])
    said_twice = {"redundancy": _REDUNDANCY} if most > _MANY_TAGS else {}
    return {"kind": "tags", "vocabulary": vocabulary, "most": most, **said_twice, FROM_ROWS: ["vocabulary", "most"]}


def _frequent(counts: Counter[str]) -> list[str]:
    """The most frequent texts in alphabetical order, as the order of their counts would reveal more about the rows."""
    return sorted(text for text, _ in counts.most_common(MOST_CATEGORIES))
