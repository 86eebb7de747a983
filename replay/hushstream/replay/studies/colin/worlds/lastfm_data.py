"""Reads HetRec 2011 Last.fm as arrays: listened artists of each person, friendships, and tags of artists.

In the publisher's archive the tag assignments are one file, ``user_taggedartists.dat`` with 186,479 rows; no checksum
of it is known here. A public copy has two parts with known checksums (one row was lost between them). Either form is
accepted; anything else is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hushstream.replay.datasets.dataset import DatasetFile
from hushstream.replay.datasets.store import check_file, locate
from hushstream.replay.worlds.world import WorldError

DATASET = "lastfm"

_TAG_PARTS = (
    DatasetFile(
        "user_taggedartists.dat",
        "7d46ca9d9abfd2a5018d42e3f1ed21e04981d608c376cb12f7c7285a94c37f89",
        2485033,
    ),
    DatasetFile(
        "user_taggedartists_2.dat", "e2dd14c47c66201662f593acb825ff7de6239a84acb1f24c6fa01ac1ad6909d6", 1881680
    ),
)
_WHOLE_TAG_ROWS = 186_479
_TAG_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class Listening:
    """The dataset, with people and artists numbered from 0 in the order of their published numbers.

    Attributes:
        people: how many people.
        artists: how many artists have a tag; others have no features and are left out.
        tags: how many tags are used.
        listened: (pairs, 2) int64: person, artist; each pair once.
        friends: (edges, 2) int64: person, person; each friendship in both directions.
        assigned: (assignments, 2) int64: artist, tag; one row each time a person assigned the tag.
    """

    people: int
    artists: int
    tags: int
    listened: npt.NDArray[np.int64]
    friends: npt.NDArray[np.int64]
    assigned: npt.NDArray[np.int64]


def read_lastfm(data_dir: str | Path | None = None) -> Listening:
    """Read the dataset from its folder.

    Args:
        data_dir: local data folder in place of the cache.

    Raises:
        DatasetError: the files are absent or differ from the published ones.
        WorldError: the tag assignments are absent, or a file is malformed.
    """
    folder = locate(DATASET, data_dir)
    heard = _table(folder / "user_artists.dat", 3)[:, :2]
    friends = _table(folder / "user_friends.dat", 2)
    return number(heard, friends, _tag_rows(folder)[:, 1:3])


def number(heard: npt.NDArray[np.int64], friends: npt.NDArray[np.int64], tagged: npt.NDArray[np.int64]) -> Listening:
    """Number people, artists and tags from 0.

    Args:
        heard: (n, 2) person, artist, as published.
        friends: (n, 2) person, person, both directions.
        tagged: (n, 2) artist, tag.

    Raises:
        WorldError: a friend who listened to nothing, or a friendship in one direction only.
    """
    people = np.unique(heard[:, 0])
    artists, artist_of = np.unique(tagged[:, 0], return_inverse=True)
    tags, tag_of = np.unique(tagged[:, 1], return_inverse=True)
    if not np.isin(friends, people).all():
        raise WorldError("lastfm: expected every friend to have listened to an artist, got one without")
    edges = np.unique(np.searchsorted(people, friends), axis=0)
    if not np.array_equal(edges, np.unique(edges[:, ::-1], axis=0)):
        raise WorldError("lastfm: expected every friendship in both directions, got some in one")
    known = heard[np.isin(heard[:, 1], artists)]
    pairs = np.column_stack((np.searchsorted(people, known[:, 0]), np.searchsorted(artists, known[:, 1])))
    return Listening(
        people=len(people),
        artists=len(artists),
        tags=len(tags),
        listened=np.unique(pairs, axis=0),
        friends=edges,
        assigned=np.column_stack((artist_of, tag_of)),
    )


def _tag_rows(folder: Path) -> npt.NDArray[np.int64]:
    whole, second = (folder / part.path for part in _TAG_PARTS)
    if not whole.is_file():
        raise WorldError(
            f"lastfm: expected the tag assignments in {whole}, got no such file; take it from the published archive "
            "(it is not fetched: no checksum of it is known) and give the folder by --data-dir"
        )
    if second.is_file():
        for part in _TAG_PARTS:
            check_file(folder / part.path, part)
        return np.concatenate([_table(whole, _TAG_COLUMNS), _table(second, _TAG_COLUMNS)])
    rows = _table(whole, _TAG_COLUMNS)
    if len(rows) != _WHOLE_TAG_ROWS:
        raise WorldError(f"{whole}: expected {_WHOLE_TAG_ROWS} rows as published, got {len(rows)}")
    return rows


def _table(path: Path, columns: int) -> npt.NDArray[np.int64]:
    """Read a file of whole numbers in tab-separated columns, after a line of names."""
    try:
        table = np.loadtxt(path, dtype=np.int64, delimiter="\t", skiprows=1, ndmin=2)
    except OSError as error:
        raise WorldError(f"{path}: expected a readable file, got: {error.strerror}") from error
    except ValueError:
        raise WorldError(f"{path}: expected {columns} tab-separated whole numbers a line after the first") from None
    if table.shape[1] != columns:
        raise WorldError(f"{path}: expected {columns} columns, got {table.shape[1]}")
    return table
