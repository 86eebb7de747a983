"""Drafts a deployment for a user's own log: its items, the features of a visit, and sizes that fit the log.

Values that were computed from rows are marked as private (`hushstream.features.confirmation`), as in a draft of
features alone. `hushstream prepare` refuses the draft until its owner has confirmed each mark. An evaluation on the
same log accepts it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hushstream.features.confirmation import FROM_ROWS
from hushstream.replay.logged.drafts.features import FeatureDraft, draft_features
from hushstream.replay.logged.drafts.mapping import MEANT, Columns, arms_in, delimiter_of, first_of
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.table import PARQUET_SUFFIXES, columns_in, read_chunks

_ROOM = 1.25
"""The drafted capacity, with room for later items, as a multiple of the items in the log."""

_LEAST_ITEMS = 2
_MOST_INTERACTIONS = 10
_WINDOWS, _LEAST_WINDOW = 4, 2_000
"""The drafted number of windows for the expected slots, and the least slots of one.

More windows update the model more often, and each adds noise. With fewer slots in a window, at the drafted epsilon, the
noise hides everything but the items' mean rewards.
"""

_EXPLORED = 0.05
_EPSILON, _HELD_OUT, _HOLDOUT_EPSILON = 1.0, 0.1, 0.5


class _Size(NamedTuple):
    """Sizes of a log: its users, the number of rows that three in four users have at least, and its items."""

    users: int
    usual_rows: int
    items: int | list[str]


def draft_deployment(path: Path, name: str) -> str:
    """Draft a deployment.yaml for a CSV or Parquet log; its owner has to read it and confirm each mark.

    Args:
        path: path of the log.
        name: name of the deployment; letters that a name may not have are replaced.

    Raises:
        LogError: the file cannot be read, or has no rows, no column with the arm shown, or no column that could be a
            feature.
    """
    features, size = draft_features(path), _size_of(path)
    return "\n".join(_lines(_name(name), features, size)) + "\n"


def _lines(name: str, features: FeatureDraft, size: _Size) -> Iterator[str]:
    count = size.items if isinstance(size.items, int) else len(size.items)
    slots = _one_digit(size.users)
    yield f"deployment: {name}"
    named = "" if isinstance(size.items, int) else ", named: true"
    yield f"items: {{capacity: {_capacity(size.items)}{named}, expected: {max(count, _LEAST_ITEMS)}}}"
    yield from features.of_features()
    yield f"expected_slots: {slots}   # one person sends one"
    yield f"{FROM_ROWS}: [expected_slots]"
    yield "slot:"
    yield f"  after_interactions: {min(_MOST_INTERACTIONS, size.usual_rows)}   # as many as three in four persons have"
    yield f"  {FROM_ROWS}: [after_interactions]"
    yield f"privacy: {{epsilon: {_EPSILON}}}"
    yield "release:"
    yield "  mechanism: slot-sums"
    yield f"  window_units: {max(slots // _WINDOWS, min(_LEAST_WINDOW, slots))}"
    yield f"  {FROM_ROWS}: [window_units]"
    yield "feedback:"
    yield "  settle_seconds: 3600"
    if "click_rate" in features.declaration:
        yield f"  click_rate: {features.declaration['click_rate']}"
        yield f"  {FROM_ROWS}: [click_rate]"
    yield f"exploration: {{choice: epsilon, share: {_EXPLORED}}}   # so that its own log judges other policies later"
    yield f"holdout: {{share: {_HELD_OUT}, epsilon: {_HOLDOUT_EPSILON}}}   # for `hushstream lift`"
    yield "partitions: {learner: 1, shuffler: 1}"


def _size_of(path: Path) -> _Size:
    delimiter = "," if path.suffix.lower() in PARQUET_SUFFIXES else delimiter_of(path)
    names = columns_in(path, delimiter)
    user, arm = first_of(names, MEANT["user"]), first_of(names, MEANT["arm"])
    if arm is None:
        raise LogError(f"{path}: expected a column of what was shown, such as {', '.join(MEANT['arm'][:5])}, got none")
    wanted = Columns(tuple(one for one in (user, arm) if one is not None), delimiter)
    rows_of, shown, rows = Counter[Any](), dict[Any, None](), 0
    for chunk in read_chunks(path, wanted):
        rows_of.update([] if user is None else map(str, chunk.columns[user]))
        shown |= dict.fromkeys(map(str, chunk.columns[arm]))
        rows += len(chunk.row_names)
    if user is None:
        return _Size(rows, 1, arms_in(list(shown)))
    counts = sorted(rows_of.values())
    return _Size(len(counts), counts[len(counts) // 4], arms_in(list(shown)))


def _capacity(items: int | list[str]) -> int:
    """The drafted ``items.capacity``.

    Numbered items cannot be added later, so they need no room for more: it would be filled with items that do not
    exist.
    """
    return max(_LEAST_ITEMS, items if isinstance(items, int) else math.ceil(_ROOM * len(items)))


def _one_digit(count: int) -> int:
    """The count rounded to one significant digit, so that it reveals less about single users."""
    unit: int = 10 ** (len(str(count)) - 1)
    return max(1, round(count / unit) * unit)


def _name(name: str) -> str:
    """The name, changed to one that a deployment may have."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return kept.strip("-")[:32].strip("-") or "shop"
