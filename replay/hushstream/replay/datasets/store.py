"""Where datasets lie on this machine: a data folder given by the user, or the cache; always checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hushstream.replay.datasets.dataset import Dataset, DatasetError, DatasetFile, Summary
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

    Looked at in this order: ``data_dir`` where given, else the folder named by ``HUSHSTREAM_DATA`` where set,
    else the cache. A data folder holds one folder a dataset, or is itself the dataset's folder.

    Raises:
        DatasetError: the dataset is unknown or not there, or a file differs from the published one.
    """
    dataset = find_dataset(name)
    if not dataset.files:
        raise DatasetError(f"dataset {name!r} is simulated and has no files")
    given = data_dir if data_dir is not None else os.environ.get(DATA_FOLDER_VARIABLE)
    if given:
        folder = local_folder(dataset, Path(given))
    else:
        folder = cache_folder() / dataset.name
        if not _holds(folder, dataset):
            raise DatasetError(
                f"dataset {name!r} is not in {folder}: run `hushstream datasets fetch {name}`, or give a "
                f"local folder by --data-dir or {DATA_FOLDER_VARIABLE}"
            )
    for file in dataset.files:
        check_file(folder / file.path, file)
    return folder


def local_folder(dataset: Dataset, data_dir: Path) -> Path:
    """Return the folder within ``data_dir`` (or itself) that holds all files of a dataset, unchecked.

    Raises:
        DatasetError: no such folder; the message says where it was looked for and what is missing.
    """
    candidates = [data_dir / folder for folder in dataset.folders] + [data_dir]
    for folder in candidates:
        if _holds(folder, dataset):
            return folder
    missing = next(file.path for file in dataset.files if not (candidates[0] / file.path).is_file())
    places = " or ".join(str(folder) for folder in candidates)
    raise DatasetError(f"dataset {dataset.name!r}: expected its files in {places}; {missing} is missing")


def check_file(path: Path, file: DatasetFile) -> None:
    """Compare a file with its published checksum.

    Raises:
        DatasetError: it cannot be read, or its length or checksum differ.
    """
    try:
        size = path.stat().st_size
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
        held = (place for place in places if dataset.files and _holds(place, dataset))
        yield dataset, next(held, None)


def _holds(folder: Path, dataset: Dataset) -> bool:
    return all((folder / file.path).is_file() for file in dataset.files)
