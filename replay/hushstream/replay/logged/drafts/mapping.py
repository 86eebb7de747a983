"""Drafts the mapping of a user's own log, with comments: the columns of user, arm, reward and propensity.

The features are declared in the deployment that is drafted with it (`hushstream.replay.logged.drafts.deployment`).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import compress, islice
from typing import Any

import yaml

from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.table import (
    JSON_SUFFIXES,
    NOT_UTF8,
    PARQUET_SUFFIXES,
    Query,
    RawChunk,
    Source,
    columns_in,
    delimiter_line,
    once,
    opened,
    propensities,
    read_chunks,
)
from hushstream.replay.logged.values import (
    Place,
    id_of,
    integers,
    marks_nothing,
    rewards,
    texts,
    times_ms,
    truth_of,
    users,
)
from hushstream.systems.p2b.slots import reward_level

ROWS = 20_000
"""The number of rows from which a draft is made."""

MOST_CATEGORIES = 40
MOST_LEVELS = 100
"""So many reward levels are drafted at most; rewards between them are rounded."""

_SAME_REWARD = 1e-6
_WHO = (
    *("user", "customer", "account", "visitor", "client", "member", "subscriber", "shopper", "buyer"),
    *("guest", "reader", "viewer", "player", "person", "who", "household", "cookie", "session"),
)
MEANT = {
    "user": tuple(who + id_ for id_ in ("id", "", "no", "number", "key", "uuid", "hash") for who in _WHO),
    "timestamp": (
        *("timestamp", "timestampms", "time", "ts", "at", "date", "datetime", "createdat", "eventtime"),
        *("eventat", "eventtimestamp", "occurredat", "shownat", "servedat"),
    ),
    "arm": (
        *("arm", "action", "item", "itemid", "itemname", "shown", "shownitem", "offer", "offerid", "variant"),
        *("product", "productid", "productname", "sku", "article", "articleid", "banner", "bannerid", "chosen"),
        *("recommended", "actionid"),
    ),
    "reward": (
        *("reward", "click", "clicked", "isclick", "clicks", "bought", "purchase", "purchased", "converted"),
        *("conversion", "liked", "success"),
    ),
    "propensity": (
        *("propensity", "propensityscore", "pscore", "prob", "probability", "actionprob", "actionprobability"),
        "chance",
    ),
    "position": ("position", "rank", "place"),
}
"""Usual names of columns, reduced to letters and digits: ``visitor_id`` and ``VisitorId`` become ``visitorid``."""

_CALENDAR = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])", re.ASCII)
_NO_SECONDS = {
    (20_000, 80_000): "numbers as spreadsheets count days: save the column formatted as yyyy-mm-ddThh:mm:ss",
    (1_900, 2_100): "years: write whole dates, or name the column otherwise",
}
"""What numbers of these sizes are; the first are days since 1900 of the years 1954 to 2119."""

_ASK = "# ? no column seems to fit: write its name"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a draft reads."""

    columns: tuple[str, ...]
    delimiter: str = ","


def draft_mapping(path: Source) -> str:
    """Draft a mapping for a CSV, Parquet or JSON log or a query; its owner has to read and correct it before its use.

    It names no context: the deployment declares the features (`hushstream.replay.logged.drafts.deployment`).

    Raises:
        LogError: the file cannot be read, or has no rows.
    """
    delimiter = delimiter_of(path)
    names = once(columns_in(path, delimiter))
    chunk = next(read_chunks(path, Columns(tuple(names), delimiter), ROWS))
    meant = meanings_of(names, chunk.columns)
    arm, perhaps = meant["arm"], perhaps_rewards(names, chunk.columns, meant)
    items = None if arm is None else arms_in(_all_of(path, Columns((arm,), delimiter)))
    lines = [*_head(path, delimiter), *_who(chunk.columns, meant), *_what(items, meant, perhaps)]
    _require_readable(path, chunk, meant)
    return "\n".join(lines) + "\n"


def _all_of(path: Source, column: Columns) -> list[str]:
    """The different values of a column in the whole file: of a log in the order of time, new items come last."""
    (name,) = column.columns
    return list({id_of(value) for chunk in read_chunks(path, column) for value in chunk.columns[name]})


def _require_readable(path: Source, chunk: RawChunk, meant: Mapping[str, str | None]) -> None:
    """Refuse what `hushstream evaluate` would refuse in the columns that the draft names.

    Raises:
        LogError: names the first row of a column that cannot be read.
    """
    arm = meant["arm"]
    shown = [not marks_nothing(one) for one in chunk.columns[arm]] if arm is not None else [True] * len(chunk.row_names)
    place = (str(path), list(compress(chunk.row_names, shown)))
    columns = {name: list(compress(values, shown)) for name, values in chunk.columns.items()}

    def times(values: Sequence[Any], name: str, place: Place) -> object:
        return times_ms(values, name, place, unit=_unit(values, name))

    readers: Mapping[str, Callable[[Sequence[Any], str, Place], object]] = {
        "user": users, "timestamp": times, "arm": texts, "reward": rewards, "propensity": propensities,
        "position": integers,
    }  # fmt: skip
    for key, read in readers.items():
        column = meant[key]
        if column is not None:
            read(columns[column], column, place)
    found = 2 if arm is None else arms_in(columns[arm])
    if (found if isinstance(found, int) else len(found)) < 2:
        raise LogError(f"{path}, column {arm}: expected two items at least, got fewer: there is nothing to choose")


def meanings_of(names: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> dict[str, str | None]:
    """The column for each key of `MEANT`, found by its name.

    If no name fits the time, the only column with times is used. A place of other than numbers is a town, say; and of
    a column without any value only the items and rewards would be missed.
    """
    meant = {key: first_of(names, among) for key, among in MEANT.items()}
    for key, name in meant.items():
        said = [] if name is None else [one for one in columns[name] if not marks_nothing(one)]
        if key not in ("arm", "reward") and not (numbers_in(said) if key == "position" else said):
            meant[key] = None
    if meant["timestamp"] is None:
        others = [name for name in names if name not in meant.values() and _are_moments(columns[name])]
        meant["timestamp"] = others[0] if len(others) == 1 else None
    perhaps = perhaps_rewards(names, columns, meant)
    return {**meant, "reward": perhaps[0]} if meant["reward"] is None and len(perhaps) == 1 else meant


def perhaps_rewards(
    names: Sequence[str], columns: Mapping[str, Sequence[Any]], meant: Mapping[str, str | None]
) -> list[str]:
    """Columns that may be the reward of a log of decisions in which no name says so: levels from 0 to 1."""
    if meant["arm"] is None or first_of(names, MEANT["reward"]) is not None:
        return []
    others = [name for name in names if name not in (meant[key] for key in MEANT if key != "reward")]
    return [
        name for name in others if 0 in (found := rewards_in(columns[name])) and max(found) > 0 and levels_of(found)
    ]


def rewards_in(values: Sequence[Any]) -> list[float]:
    """The values as rewards, yes as 1 and no as 0; empty if one of them is none."""
    truths = [truth_of(value) for value in values]
    return numbers_in([value if truth is None else truth for value, truth in zip(values, truths, strict=True)])


def levels_of(rewards: Sequence[float]) -> int | None:
    """The fewest reward levels above 0 that hold all these rewards; None if no number up to `MOST_LEVELS` does."""
    found = set(rewards)
    if found and not 0 <= min(found) <= max(found) <= 1:
        return None
    return next((levels for levels in range(1, MOST_LEVELS + 1) if not off_levels(list(found), levels)), None)


def off_levels(rewards: Sequence[float], levels: int) -> list[float]:
    """The rewards that are rounded down to one of ``levels`` levels, as slots hold them (`reward_level`)."""
    return [reward for reward in rewards if abs(reward_level(reward, levels) / levels - reward) > _SAME_REWARD]


def _are_moments(values: Sequence[Any]) -> bool:
    """Whether all values are a date with a time of day; a date alone may be a date of birth."""
    return all(
        isinstance(value, datetime) or (isinstance(value, str) and ":" in value and is_iso(value)) for value in values
    )


def is_iso(text: str) -> bool:
    """Whether a text is a time by ISO 8601."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def delimiter_of(path: Source) -> str:
    """The delimiter of a CSV file, from its first lines; a comma for another source.

    Raises:
        LogError: it cannot be read.
    """
    try:
        if isinstance(path, Query) or path.suffix.lower() in (*PARQUET_SUFFIXES, *JSON_SUFFIXES):
            return ","
        with opened(path) as stream:
            head = "".join(islice(stream, 5))
            stream.seek(0)
            return delimiter_line(stream) or csv.Sniffer().sniff(head, ",;\t|").delimiter
    except (OSError, UnicodeError):
        raise LogError(f"{path}: {NOT_UTF8}") from None
    except csv.Error:
        return ","


def first_of(names: Sequence[str], among: Sequence[str]) -> str | None:
    """The first of ``among`` that is the name of a column, ignoring case and separators; None if there is none."""
    plain = {"".join(filter(str.isalnum, name)).lower(): name for name in reversed(names)}
    return next((plain[name] for name in among if name in plain), None)


def _head(path: Source, delimiter: str) -> Iterator[str]:
    yield f"# The meaning of the columns of {path.name}; drafted from its first rows, so check each line."
    yield "data: internal          # or public, if everybody may see exact figures on it; internal marks every output"
    if delimiter != ",":
        yield f"delimiter: {flow_yaml(delimiter)}"


def _who(columns: dict[str, Sequence[Any]], meant: dict[str, str | None]) -> Iterator[str]:
    user, timestamp = meant["user"], meant["timestamp"]
    yield (
        "# user: COLUMN          # without it every row counts as another user"
        if user is None
        else f"user: {flow_yaml(user)}          # a row that names none counts as another user"
    )
    if timestamp is None:
        yield "# timestamp: COLUMN     # without it the rows get times a millisecond apart, in the order of the file"
    else:
        yield f"timestamp: {flow_yaml(timestamp)}"
        unit = _unit(columns[timestamp], timestamp)
        yield f"timestamp_unit: {unit}     # iso (ISO 8601, without zone: UTC), s or ms since 1970"


def _unit(values: Sequence[Any], name: str) -> str:
    """The unit of a column of times.

    Raises:
        LogError: they are numbers of days, as spreadsheets count them, or years.
    """
    found = numbers_in([value for value in values if not marks_nothing(value)])
    if not found or all(_CALENDAR.fullmatch(str(value)) for value in values):
        return "iso"
    for (low, high), got in _NO_SECONDS.items():
        if low <= min(found) and max(found) <= high:
            raise LogError(f"column {name}: expected times, got {got}")
    return "ms" if max(found) > 1e11 else "s"


def _what(items: int | list[str] | None, meant: dict[str, str | None], perhaps: Sequence[str]) -> Iterator[str]:
    arm, reward, propensity = meant["arm"], meant["reward"], meant["propensity"]
    yield f"arm: {flow_yaml(arm)}" if arm is not None else f"arm: COLUMN             {_ASK} (of the arm that was shown)"
    if items is not None:
        yield f"arms: {flow_yaml(items)}   # their number (counted from 0), or all their names"
    if reward is None:
        named = f" ({', '.join(map(flow_yaml, perhaps))}?)" if perhaps else ""
        yield f"reward: COLUMN          {_ASK}{named}, from 0 to 1"
    else:
        yield f"reward: {flow_yaml(reward)}          # {'? by its values; ' * (reward in perhaps)}from 0 to 1"
    if propensity is not None:
        yield f"propensity: {flow_yaml(propensity)}   # probability with which that arm was shown, above 0"
    else:
        yield "# propensity: COLUMN    # probability of the shown arm; without it, it is estimated, and outputs say so"
        yield "# uniform: true         # if every eligible arm was shown with the same probability"
    yield "# eligible: COLUMN      # the arms that could be shown, joined by eligible_separator (default |)"
    if meant["position"] is not None:
        yield f"position: {flow_yaml(meant['position'])}"


def arms_in(values: Sequence[Any]) -> int | list[str]:
    """The number of arms in a column, if they are 0, 1, 2 and so on without a gap; else their names in order.

    Other numbers are names: an item that no row shows does not exist.
    """
    found = sorted({id_of(value) for value in values if not marks_nothing(value)})
    return len(found) if set(found) == set(map(str, range(len(found)))) else found


def numbers_in(values: Sequence[Any]) -> list[float]:
    """The values as numbers; empty if one of them is no number."""
    try:
        found = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        return []
    return found if all(map(math.isfinite, found)) else []


def bounds_of(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest value, rounded outward to one digit, so that they reveal less about single rows."""
    low, high = min(values), max(values)
    unit = 10.0 ** math.floor(math.log10(max(abs(low), abs(high), 1e-9)))
    return math.floor(low / unit) * unit, max(math.ceil(high / unit) * unit, (math.floor(low / unit) + 1) * unit)


def flow_yaml(value: Any) -> str:
    """A value as YAML on one line."""
    text = str(yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True))
    return text.removesuffix("\n").removesuffix("\n...")
