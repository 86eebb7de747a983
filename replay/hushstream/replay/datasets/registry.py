"""What a dataset is, and how one is found by name: the built-in table and the entry points of other packages.

Another package adds a dataset with an entry point of the group ``hushstream.datasets`` that names a
`Dataset`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hushstream.replay.offers import Offers
from hushstream.schemas.errors import HushstreamError

Summary = Mapping[str, int | float | str]


class DatasetError(HushstreamError):
    """A dataset is unknown, is not where it was looked for, or is not what its publisher released."""


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """One file of a dataset.

    Attributes:
        path: where it lies within the dataset's folder, with forward slashes.
        sha256: checksum of its bytes, in hexadecimal.
        size_bytes: its length.
        url: where the publisher offers it as a file of its own, or None.
        member: its name within the publisher's archive, or None.
    """

    path: str
    sha256: str
    size_bytes: int
    url: str | None = None
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset by name: what it is, whose it is, and how to get and check its files.

    Attributes:
        name: how it is asked for.
        description: one line for people.
        licence: what its publisher allows.
        page: where it is described.
        files: every file that is needed, each with its checksum.
        archive_url: the publisher's zip archive (a wheel is one), or None where files come one by one.
        verified: whether the addresses were seen to answer with these bytes. False: they are taken from
            public descriptions; the checksums hold in any case.
        note: what a user should know before fetching.
        folders: names under which a local data folder may hold it.
        summarise: counts the rows, users, arms and rewards of the files in a folder.
    """

    name: str
    description: str
    licence: str
    page: str
    files: tuple[DatasetFile, ...]
    archive_url: str | None
    verified: bool
    note: str
    folders: tuple[str, ...]
    summarise: Callable[[Path], Summary]


DATASETS: Offers[Dataset] = Offers("dataset", "hushstream.datasets", Dataset, DatasetError)


def known_datasets() -> dict[str, Dataset]:
    """Return every dataset by name, sorted.

    Raises:
        DatasetError: two packages claim one name, or an entry point does not name a `Dataset`.
    """
    from hushstream.replay.datasets.builtin import BUILTIN

    return DATASETS.known({dataset.name: dataset for dataset in BUILTIN})


def find_dataset(name: str) -> Dataset:
    """Return the dataset of this name.

    Raises:
        DatasetError: there is none; the message lists the known names.
    """
    return DATASETS.find(known_datasets(), name)
