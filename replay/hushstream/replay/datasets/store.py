"""Finds datasets on this machine: in a data folder of the user, or in the cache. It checks the files.

*Fetching.* Downloads a dataset, or copies it from a local folder; a download can be resumed, and every file is checked.

A download grows in a file ending in ``.part``. If a connection is lost, the download is resumed from the end of that
file with a Range request, now or at the next call. If a server ignores Range, the file is loaded from the start. A file
is put in its place only after its checksum was compared, and a file with a wrong checksum is removed.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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


Progress = Callable[[str, int, int | None], None]
"""Called with the name of the file, the bytes so far, and the bytes in all (None: not known)."""

_PIECE_BYTES = 1 << 16
_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True, slots=True)
class Transfer:
    """How many attempts a download makes, and how long it waits.

    Attributes:
        attempts: number of connections for one file, in one call.
        timeout_seconds: time without data after which a connection counts as lost.
        pause_seconds: wait before the second attempt; doubled for each further one.
    """

    attempts: int = 5
    timeout_seconds: float = 30.0
    pause_seconds: float = 1.0


def fetch(
    name: str,
    dest: str | Path | None = None,
    data_dir: str | Path | None = None,
    *,
    progress: Progress | None = None,
    transfer: Transfer | None = None,
) -> Path:
    """Bring a dataset's files into a folder, each compared with its published checksum.

    Args:
        name: a dataset of `known_datasets`.
        dest: where to put its folder; default the cache.
        data_dir: a local data folder to copy from in place of the publisher; default ``HUSHSTREAM_DATA``.
        progress: called with the progress of the download.
        transfer: number of attempts, and their timeouts.

    Returns:
        The folder that now holds the files.

    Raises:
        DatasetError: the dataset is unknown or cannot be fetched, its address does not answer, or a file is not the
            published one. The part of a file that was already loaded stays for the next call, unless it is wrong.
    """
    return fetch_dataset(
        find_dataset(name), dest=dest, data_dir=data_dir, progress=progress, transfer=transfer or Transfer()
    )


def fetch_dataset(
    dataset: Dataset,
    *,
    dest: str | Path | None,
    data_dir: str | Path | None,
    progress: Progress | None,
    transfer: Transfer,
) -> Path:
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
        _fetch_files(dataset, wanted, folder, progress, transfer)
    return folder


def download(url: str, target: Path, *, progress: Progress | None, transfer: Transfer) -> Path:
    """Download ``url`` into the file ``target`` plus ``.part``, resume what is there, and return its path.

    Raises:
        DatasetError: the server refuses, or every attempt ended early.
    """
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    reason = "no attempt was made"
    for attempt in range(transfer.attempts):
        if attempt:
            time.sleep(transfer.pause_seconds * 2 ** (attempt - 1))
        try:
            missing = _one_attempt(url, part, progress, transfer.timeout_seconds)
        except urllib.error.HTTPError as error:
            if error.code < http.client.INTERNAL_SERVER_ERROR:
                raise DatasetError(f"{url}: the server answered {error.code} {error.reason}") from error
            reason = f"the server answered {error.code}"
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
        else:
            if not missing:
                return part
            reason = f"the connection ended {missing} bytes early"
    raise DatasetError(f"{url}: not loaded after {transfer.attempts} attempts: {reason}; call again to go on")


def _fetch_files(
    dataset: Dataset, wanted: list[DatasetFile], folder: Path, progress: Progress | None, transfer: Transfer
) -> None:
    packed = [file for file in wanted if file.member is not None]
    if packed:
        if dataset.archive_url is None:
            raise DatasetError(f"dataset {dataset.name!r} names members of an archive but no archive")
        target = folder / dataset.archive_url.rsplit("/", 1)[-1]
        part = download(dataset.archive_url, target, progress=progress, transfer=transfer)
        try:
            _unpack(part, packed, folder, dataset.archive_url)
        finally:
            part.unlink()
    for file in wanted:
        if file.member is not None:
            continue
        if file.url is None:
            raise DatasetError(f"dataset {dataset.name!r}: {file.path} cannot be fetched: {dataset.note}")
        part = download(file.url, folder / file.path, progress=progress, transfer=transfer)
        _put_in_place(part, folder / file.path, file)


def _one_attempt(url: str, part: Path, progress: Progress | None, timeout_seconds: float) -> int:
    """Append the bytes of one connection to ``part``; return how many announced bytes are missing."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "hushstream", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=timeout_seconds)
    except urllib.error.HTTPError as error:
        if error.code == _RANGE_NOT_SATISFIABLE and have:
            # The part is as long as the file, or longer. It may be wrong, so load the file again from the start.
            part.unlink()
            return have
        raise
    with answer:
        if have and not _continues(answer, have):
            have = 0
        announced = answer.headers.get("Content-Length")
        total = have + int(announced) if announced and announced.isdecimal() else None
        with part.open("ab" if have else "wb") as stream:
            while piece := answer.read(_PIECE_BYTES):
                stream.write(piece)
                have += len(piece)
                if progress is not None:
                    progress(part.stem, have, total)
    return 0 if total is None else total - have


def _continues(answer: http.client.HTTPResponse, have: int) -> bool:
    if answer.status != _PARTIAL_CONTENT:
        return False
    match = _RANGE.match(answer.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != have:
        raise http.client.HTTPException(f"the server answered another range than bytes {have}-")
    return True


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
