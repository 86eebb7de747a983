"""Criteo's advertising log as a bandit (Malekzadeh et al. 2020, section 5.3).

The file is ``train.txt`` of Kaggle's Display Advertising Challenge (2014): one line per impression, 40 columns
separated by tabs and no header: whether it was clicked (0 or 1), 13 whole numbers I1 .. I13 and 26 categories C1 .. C26
of 8 hexadecimal digits; every value but the first may be blank. Two passes read the first ``rows`` lines: one counts
the values that were shown, the other keeps the rows of the arms.

Arms. The 26 categories are feature-hashed (Weinberger et al. 2009) into 3 buckets, as the public code of the paper
does: a category that is not blank adds 1 to bucket CRC-32("Cn=" + digits) mod 3, and the three counts together are
the value that was shown. The hash has no key, so every run finds the same values. The K most frequent values (ties
by value) are the arms; rows with another value are ignored. An arm's label is its rank: "1" is the most frequent.
Arms are numbered in a seeded order, for the reason that `multilabel` gives.

Contexts are normalised histograms on the grid of q digits. Of the 13 numbers the d with the fewest blanks in the rows
kept are taken (ties by number), in the order of the file; the public code keeps I2 .. I9, I11 and I13, the others being
blank in more than 40 % of its rows. A number x has the weight ln(1 + max(x, 0)); a blank has weight 0. Each feature's
weights are divided by their mean over the rows kept, since otherwise the largest count would fill the whole histogram.
A row whose weights are all 0 gets the even histogram. Ranks, blanks and means look at all rows, also of users who are
evaluated later; no guarantee covers them.

Rewards. A kept row is one round of one user; rows are dealt without replacement. The reward is 1 if the arm shown is
the one that was logged and it was clicked. Given the row, nothing is random.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt

from hushstream.replay.datasets.store import locate
from hushstream.replay.worlds.draws import Draws, on_grid
from hushstream.replay.worlds.multilabel import MultiLabelWorld, deal
from hushstream.replay.worlds.world import WorldError, require_number
from hushstream.schemas.errors import unreadable

FILE = "train.txt"
NUMBERS, CATEGORIES, BUCKETS = 13, 26, 3
PUBLISHED_ROWS = 45_840_617

_VALUES = (CATEGORIES + 1) ** BUCKETS
_WHOLE_NUMBER = rb"-?\d{1,10}"
_CATEGORY = rb"[0-9a-f]{8}"
_ROW = re.compile(rb"[01](?:\t(?:%b)?){%d}(?:\t(?:%b)?){%d}" % (_WHOLE_NUMBER, NUMBERS, _CATEGORY, CATEGORIES))
_FORM = (
    f"expected 0 or 1, {NUMBERS} whole numbers and {CATEGORIES} categories of 8 hexadecimal digits "
    "(either may be blank), separated by tabs, and the end of the line"
)
# A valid line has at most 392 bytes; the limit keeps a file without line ends from being read as one line.
_LONGEST = 1024
_STARTS = tuple(crc32(b"C%d=" % column) for column in range(1, CATEGORIES + 1))


@dataclass(frozen=True, slots=True)
class Impressions:
    """The rows whose value is an arm.

    Attributes:
        read: rows read, kept or not.
        ranks: (n,) ranks of the values that were shown, 0 for the most frequent.
        clicks: (n,) whether it was clicked.
        numbers: (n, 13) I1 .. I13, NaN where blank.
    """

    read: int
    ranks: npt.NDArray[np.uint16]
    clicks: npt.NDArray[np.bool_]
    numbers: npt.NDArray[np.float32]


def criteo(
    *,
    users: int = 3_000,
    rounds: int = 300,
    dimension: int = 10,
    arms: int = 40,
    rows: int = 2_000_000,
    digits: int = 1,
    seed: int = 0,
    data_dir: str | None = None,
) -> MultiLabelWorld:
    """Build the world of Criteo's log; users * rounds may not exceed the rows kept.

    Args:
        users: agents; the paper has 3,000.
        rounds: T, impressions an agent; the paper goes up to 300.
        dimension: d, numbers of a context; at most 13.
        arms: K, the most frequent values.
        rows: lines read from the beginning of the file; it has 45,840,617.
        digits: q, decimal digits of a context.
        seed: decides who gets which row.
        data_dir: local data folder in place of the cache.

    Raises:
        DatasetError: the file is absent.
        WorldError: a line is malformed, or an option is out of range.
    """
    for option, value, least, most in (
        ("dimension", dimension, 2, NUMBERS),
        ("arms", arms, 2, _VALUES),
        ("rows", rows, 1, PUBLISHED_ROWS),
        ("digits", digits, 1, 6),
    ):
        require_number("criteo", option, value, least, most)
    kept = read_impressions(locate("criteo", data_dir) / FILE, rows, arms)
    dealt = deal("criteo", len(kept.ranks), users, rounds, seed)
    chosen = Draws(seed, "arms").generator().permutation(arms)
    # Contexts and rewards are made only for dealt rows: 40 rewards a row take more memory than everything else.
    taken = dealt.ravel()
    return MultiLabelWorld(
        name="criteo",
        users=users,
        rounds=rounds,
        labels=tuple(str(rank + 1) for rank in chosen),
        table_contexts=on_grid(weights(kept.numbers, dimension)[taken], digits),
        table_labels=(kept.ranks[taken, None] == chosen) & kept.clicks[taken, None],
        dealt=np.arange(taken.size).reshape(dealt.shape),
    )


def read_impressions(path: Path, rows: int, arms: int) -> Impressions:
    """Read the first ``rows`` lines and keep those of the ``arms`` most frequent values.

    Raises:
        WorldError: the file cannot be read, a line is malformed (the message names the line, never its content), or
            there are fewer values than arms.
    """
    try:
        return _read(path, rows, arms, path.stat().st_mtime_ns)
    except OSError as error:
        raise WorldError(f"{path}: expected a readable file, got {unreadable(error)}") from error


def shown(categories: list[bytes]) -> int:
    """The value of 26 categories: their counts in three buckets, as digits of base 27; blanks do not count."""
    counts = [0] * BUCKETS
    for start, category in zip(_STARTS, categories, strict=True):
        if category:
            counts[crc32(category, start) % BUCKETS] += 1
    value = 0
    for count in counts:
        value = value * (CATEGORIES + 1) + count
    return value


def weights(numbers: npt.NDArray[np.float32], dimension: int) -> npt.NDArray[np.float32]:
    """The (n, d) weights of a context's features out of (n, 13) numbers; see the module."""
    blanks = np.isnan(numbers).sum(axis=0)
    taken = np.sort(np.argsort(blanks, kind="stable")[:dimension])
    logs = np.log1p(np.maximum(np.nan_to_num(numbers[:, taken], nan=0.0), 0.0))
    means = logs.mean(axis=0, dtype=np.float64)
    return np.asarray(logs / np.where(means > 0, means, 1.0), dtype=np.float32)


# A figure builds the world for each of its points and seeds; with this cache it reads the file once.
@lru_cache(maxsize=1)
def _read(path: Path, rows: int, arms: int, changed_at: int) -> Impressions:
    values = array("H", (shown(fields[1 + NUMBERS :]) for fields in _fields(path, rows)))
    if not values:
        raise WorldError(f"{path}: expected at least one row, got none")
    of_rows = np.array(values, dtype=np.uint16)
    counts = np.bincount(of_rows, minlength=_VALUES)
    found = int(np.count_nonzero(counts))
    if found < arms:
        raise WorldError(f"{path}: expected at least {arms} values of the hashed categories as arms, got {found}")
    ranks = np.full(_VALUES, arms, dtype=np.uint16)
    ranks[np.argsort(-counts, kind="stable")[:arms]] = np.arange(arms)
    of_rows = ranks[of_rows]
    kept = of_rows < arms
    numbers, clicks = array("f"), bytearray()
    blank = float("nan")
    for fields, keep in zip(_fields(path, rows), kept, strict=True):
        if keep:
            clicks.append(fields[0] == b"1")
            numbers.extend(float(field) if field else blank for field in fields[1 : 1 + NUMBERS])
    return Impressions(
        len(of_rows),
        of_rows[kept],
        np.frombuffer(bytes(clicks), dtype=np.bool_),
        np.array(numbers, dtype=np.float32).reshape(-1, NUMBERS),
    )


def _fields(path: Path, rows: int) -> Iterator[list[bytes]]:
    """Yield the 40 fields of each of the first rows."""
    with path.open("rb") as stream:
        for number in range(1, rows + 1):
            line = stream.readline(_LONGEST)
            if not line:
                return
            row = line.rstrip(b"\r\n")
            # Without its line end, a row that ends in a blank value may have been cut there.
            if _ROW.fullmatch(row) is None or (row == line and row.endswith(b"\t")):
                raise WorldError(f"{path}, line {number}: {_FORM}")
            yield row.split(b"\t")
