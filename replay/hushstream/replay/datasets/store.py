"""Finds datasets on this machine: in a data folder of the user, or in the cache. It checks the files.

*Fetching.* Downloads a dataset, or copies it from a local folder. A file grows under a name ending in ``.part``, and is
put in its place only after its checksum was compared; a file with a wrong checksum is removed. The largest download has
25 MB, so one that was cut off is made again.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from hushstream.replay.datasets.builtin import (
    AbsentDatasetError,
    Dataset,
    DatasetError,
    DatasetFile,
    find_dataset,
    known_datasets,
)

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


def size_of(folder: Path, dataset: Dataset) -> int:
    """The bytes of a dataset's files in a folder."""
    return sum((folder / file.path).stat().st_size for file in held_files(folder, dataset))


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


_TIMEOUT_SECONDS = 30.0
"""Seconds without data after which a connection counts as lost."""


def fetch(name: str, dest: str | Path | None = None, data_dir: str | Path | None = None) -> Path:
    """Bring a dataset's files into a folder, each compared with its published checksum.

    Args:
        name: a dataset of `known_datasets`.
        dest: where to put its folder; default the cache.
        data_dir: a local data folder to copy from in place of the publisher; default ``HUSHSTREAM_DATA``.

    Returns:
        The folder that now holds the files.

    Raises:
        DatasetError: the dataset is unknown or cannot be fetched, its address does not answer, or a file is not the
            published one.
    """
    return fetch_dataset(find_dataset(name), dest=dest, data_dir=data_dir)


def fetch_dataset(dataset: Dataset, *, dest: str | Path | None, data_dir: str | Path | None) -> Path:
    """As `fetch`, for a `Dataset` object."""
    if not dataset.files:
        raise DatasetError(f"dataset {dataset.name!r} is simulated: there is nothing to fetch")
    folder = (Path(dest) if dest is not None else cache_folder()) / dataset.name
    wanted = [file for file in held_files(folder, dataset) or dataset.files if not _is_right(folder / file.path, file)]
    given = data_dir if data_dir is not None else os.environ.get(DATA_FOLDER_VARIABLE)
    if wanted and given:
        source = local_folder(dataset, Path(given))
        _copy(source, folder, [file for file in held_files(source, dataset) if not _is_right(folder / file.path, file)])
    elif wanted:
        _fetch_files(dataset, wanted, folder)
    return folder


def download(url: str, target: Path) -> Path:
    """Download ``url`` into the file ``target`` plus ``.part``, and return its path.

    Raises:
        DatasetError: the server refuses, or the connection is lost.
    """
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    request = urllib.request.Request(url, headers={"User-Agent": "hushstream", "Accept-Encoding": "identity"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer, part.open("wb") as stream:
            shutil.copyfileobj(answer, stream)
            if answer.length:  # Bytes that were announced and did not come; None if none were announced.
                raise http.client.IncompleteRead(b"", answer.length)
    except (OSError, http.client.HTTPException) as error:
        part.unlink(missing_ok=True)
        raise DatasetError(f"{url}: not loaded: {error}; call again") from error
    return part


def _fetch_files(dataset: Dataset, wanted: list[DatasetFile], folder: Path) -> None:
    packed = [file for file in wanted if file.member is not None]
    if packed:
        if dataset.archive_url is None:
            raise DatasetError(f"dataset {dataset.name!r} names members of an archive but no archive")
        target = folder / dataset.archive_url.rsplit("/", 1)[-1]
        part = download(dataset.archive_url, target)
        try:
            _unpack(part, packed, folder, dataset.archive_url)
        finally:
            part.unlink()
    for file in wanted:
        if file.member is not None:
            continue
        if file.url is None:
            raise DatasetError(f"dataset {dataset.name!r}: {file.path} cannot be fetched: {dataset.note}")
        part = download(file.url, folder / file.path)
        _put_in_place(part, folder / file.path, file)


def _unpack(archive: Path, files: list[DatasetFile], folder: Path, url: str) -> None:
    try:
        with zipfile.ZipFile(archive) as packed:
            for file in files:
                _unpack_one(packed, file, folder, url)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DatasetError(f"{url}: expected a whole zip archive, got something else; it was removed") from error


def _unpack_one(packed: zipfile.ZipFile, file: DatasetFile, folder: Path, url: str) -> None:
    assert file.member is not None
    try:
        info = packed.getinfo(file.member)
    except KeyError as error:
        raise DatasetError(f"{url}: expected a member {file.member}, got an archive without it") from error
    if info.file_size != file.size_bytes:
        raise DatasetError(f"{url}: {file.member}: expected {file.size_bytes} bytes, got {info.file_size}")
    target = folder / file.path
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    with packed.open(info) as source, part.open("wb") as stream:
        shutil.copyfileobj(source, stream)
    _put_in_place(part, target, file)


def _copy(source: Path, folder: Path, wanted: list[DatasetFile]) -> None:
    for file in wanted:
        target = folder / file.path
        part = target.with_name(target.name + ".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        check_file(source / file.path, file)
        shutil.copyfile(source / file.path, part)
        _put_in_place(part, target, file)


def _put_in_place(part: Path, target: Path, file: DatasetFile) -> None:
    try:
        check_file(part, file)
    except DatasetError as error:
        part.unlink(missing_ok=True)
        raise DatasetError(f"{error}; the file was removed") from error
    part.replace(target)


def _is_right(path: Path, file: DatasetFile) -> bool:
    if not path.is_file():
        return False
    try:
        check_file(path, file)
    except DatasetError:
        return False
    return True
