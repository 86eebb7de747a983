"""The description of a dataset and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hushstream.schemas.errors import HushstreamError

Summary = Mapping[str, int | float | str]


class DatasetError(HushstreamError):
    """A dataset is unknown, is not at the place where it was searched, or differs from what its publisher released."""


class AbsentDatasetError(DatasetError):
    """The files of a dataset are not at the place where they were searched."""


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """One file of a dataset.

    Attributes:
        path: its place within the dataset's folder, with forward slashes.
        sha256: checksum of its bytes, in hexadecimal; None where none is known, and the file is not checked.
        size_bytes: its length; None where it is not known.
        url: address of the file alone at the publisher, or None.
        member: its name within the publisher's archive, or None.
    """

    path: str
    sha256: str | None = None
    size_bytes: int | None = None
    url: str | None = None
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset: its name, its licence, and how to get and check its files.

    Attributes:
        name: how it is asked for.
        description: one line for people.
        licence: what its publisher allows.
        page: where it is described; empty where only this package knows it.
        files: every file that is needed, with its checksum where one is known.
        archive_url: the publisher's zip archive (a wheel is one), or None where files come one by one.
        verified: whether the addresses were seen to answer with these bytes. False: they are taken from
            public descriptions; the checksums hold in any case.
        note: what a user should know before fetching.
        folders: names under which a local data folder may hold it.
        summarise: counts the rows, users, arms and rewards of the files in a folder.
        instead: other files of the publisher with the same content, taken where ``files`` are not there.
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
    instead: tuple[DatasetFile, ...] = ()


@dataclass(frozen=True, slots=True)
class SummaryBy:
    """A summary by a function that is imported when it is called, because readers of datasets import this module."""

    place: str
    """``module:function``."""

    def __call__(self, folder: Path) -> Summary:
        """Summarise the files of a folder."""
        module, _, name = self.place.partition(":")
        found: Summary = getattr(import_module(module), name)(folder)
        return found


def simulated_dataset(name: str, description: str, summarise: Callable[[Path], Summary], page: str = "") -> Dataset:
    """A dataset without files, which a world simulates; attributes as of `Dataset`."""
    return Dataset(
        name=name,
        description=description,
        licence="none: simulated",
        page=page,
        files=(),
        archive_url=None,
        verified=True,
        note="Nothing to fetch.",
        folders=(),
        summarise=summarise,
    )
