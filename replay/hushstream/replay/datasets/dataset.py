"""The description of a dataset and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hushstream.schemas.errors import HushstreamError

Summary = Mapping[str, int | float | str]


class DatasetError(HushstreamError):
    """A dataset is unknown, its files were not found, or they differ from what its publisher released."""


class AbsentDatasetError(DatasetError):
    """The files of a dataset were not found in the folder that was searched."""


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """One file of a dataset.

    Attributes:
        path: its place within the dataset's folder, with forward slashes.
        sha256: checksum of its bytes, in hexadecimal; None where it is not known, so that the file is not checked.
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
        name: its name on the command line.
        description: one line that describes it.
        licence: what its publisher allows.
        page: address of its description; empty where there is none.
        files: every file that is needed, with its checksum where one is known.
        archive_url: the publisher's zip archive (a wheel is one), or None where files come one by one.
        verified: whether these bytes were loaded from the addresses once. False: the addresses come from public
            descriptions. The checksums are compared in either case.
        note: what a user should know before a download.
        folders: names under which a local data folder may hold it.
        summarise: function that counts the rows, users, arms and rewards of the files in a folder.
        instead: other files of the publisher with the same content, used where ``files`` are absent.
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
    """A summary function that is imported when it is called.

    An earlier import would be circular, as readers of datasets import this module.
    """

    place: str
    """``module:function``."""

    def __call__(self, folder: Path) -> Summary:
        """Summarise the files of a folder."""
        module, _, name = self.place.partition(":")
        found: Summary = getattr(import_module(module), name)(folder)
        return found


def simulated_dataset(name: str, description: str, summarise: Callable[[Path], Summary], page: str = "") -> Dataset:
    """Make a dataset without files, which a world simulates; the attributes are those of `Dataset`."""
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
