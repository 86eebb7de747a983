"""Finds datasets on this machine: in a data folder of the user, or in the cache. It checks the files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hushstream.replay.datasets.dataset import AbsentDatasetError, Dataset, DatasetError, DatasetFile, Summary
from hushstream.replay.datasets.registry import find_dataset, known_datasets

DATA_FOLDER_VARIABLE = "HUSHSTREAM_DATA"

_READ_BYTES = 1 << 20


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder that holds fetched datasets: ``$XDG_CACHE_HOME/hushstream/datasets``."""
    values = os.environ if environment is None else environment
    base = values.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hushstream" / "datasets"


def locate(name: str, data_dir: str | Path | None = None) -> Path:
    """Return the folder that holds a dataset, after checking each of its files.

    It is ``data_dir`` where given, else the folder in ``HUSHSTREAM_DATA`` where set, else the cache. A data folder
    holds one folder per dataset, or is itself the dataset's folder.

    Raises:
        AbsentDatasetError: the files of the dataset were not found.
        DatasetError: the dataset is unknown, or a file differs from the published one.
    """
    dataset = find_dataset(name)
    if not dataset.files:
        raise DatasetError(f"dataset {name!r} is simulated and has no files")
    given = data_dir if data_dir is not None else os.environ.get(DATA_FOLDER_VARIABLE)
    if given:
        folder = local_folder(dataset, Path(given))
    else:
        folder = cache_folder() / dataset.name
        if not held_files(folder, dataset):
            raise AbsentDatasetError(f"dataset {name!r} is not in {folder}: {remedy(dataset)}")
    for file in held_files(folder, dataset):
        check_file(folder / file.path, file)
    return folder


def local_folder(dataset: Dataset, data_dir: Path) -> Path:
    """Return the folder within ``data_dir`` (or itself) that holds all files of a dataset, unchecked.

    Raises:
        AbsentDatasetError: no folder holds all files; the message says which folders were searched, and which file is
            missing.
    """
    candidates = [data_dir / folder for folder in dataset.folders] + [data_dir]
    for folder in candidates:
        if held_files(folder, dataset):
            return folder
    missing = next(file.path for file in dataset.files if not (candidates[0] / file.path).is_file())
    places = " or ".join(str(folder) for folder in candidates)
    raise AbsentDatasetError(
        f"dataset {dataset.name!r}: expected its files in {places}; {missing} is missing{_or_instead(dataset)}"
    )


def held_files(folder: Path, dataset: Dataset) -> tuple[DatasetFile, ...]:
    """The list of files of which a folder holds all, unchecked: ``files``, else ``instead``, else none."""
    for files in (dataset.files, dataset.instead):
        if files and all((folder / file.path).is_file() for file in files):
            return files
    return ()


def check_file(path: Path, file: DatasetFile) -> None:
    """Compare a file with its published length and checksum; where these are not known, require that it exists.

    Raises:
        DatasetError: the file cannot be read, or its length or checksum differs.
    """
    try:
        size = path.stat().st_size
        if file.sha256 is None:
            return
        found = sha256_of(path) if size == file.size_bytes else None
    except OSError as error:
        raise DatasetError(f"{path}: expected a readable file, got: {error.strerror}") from error
    if size != file.size_bytes:
        raise DatasetError(f"{path}: expected {file.size_bytes} bytes, got {size}")
    if found != file.sha256:
        raise DatasetError(f"{path}: expected sha256 {file.sha256}, got {found}")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def inspect(name: str, data_dir: str | Path | None = None) -> Summary:
    """Return what a dataset holds: rows, users, arms, click rate and the like, by name.

    Raises:
        DatasetError: as `locate`.
    """
    dataset = find_dataset(name)
    folder = locate(name, data_dir) if dataset.files else Path()
    return dataset.summarise(folder)


def list_datasets(data_dir: str | Path | None = None) -> Iterator[tuple[Dataset, Path | None]]:
    """Yield every dataset with the folder that holds it, None where it is absent (files are not checked)."""
    given = data_dir if data_dir is not None else os.environ.get(DATA_FOLDER_VARIABLE)
    for dataset in known_datasets().values():
        places = [cache_folder() / dataset.name]
        if given:
            places = [Path(given) / folder for folder in dataset.folders] + [Path(given)]
        held = (place for place in places if held_files(place, dataset))
        yield dataset, next(held, None)


def remedy(dataset: Dataset) -> str:
    """What to do about a dataset that is not there, as a clause."""
    if all(file.sha256 is not None for file in dataset.files):
        return (
            f"run `hushstream datasets fetch {dataset.name}`, or give a local folder by --data-dir or "
            f"{DATA_FOLDER_VARIABLE}"
        )
    needed = " and ".join(file.path for file in dataset.files)
    return (
        f"give a local folder with {needed}{_or_instead(dataset)} by --data-dir or {DATA_FOLDER_VARIABLE}; "
        f"the publisher's page is {dataset.page}"
    )


def _or_instead(dataset: Dataset) -> str:
    """The files that can replace the missing one, as the end of a clause."""
    return f" (or, instead, {' and '.join(file.path for file in dataset.instead)})" if dataset.instead else ""
