"""A ledger on disk: one writer, every debit durable before it is answered, and a mark that shows an older copy.

Two files. The ledger has one line for each entry, and each line's digest covers all lines before it. The mark, which
belongs beside the data folder and not in it (a backup of the data must not bring back an old mark with it), holds the
largest sums ever spent. An entry is on disk before the mark moves and before its release may go out.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

from hushstream.privacy.amounts import Cost
from hushstream.privacy.errors import LedgerError
from hushstream.privacy.ledger import Debit, Entry, Exhausted, Filter, Ledger, entry_as_json, entry_from_json

if sys.platform != "win32":
    import fcntl

_START = hashlib.blake2b(b"hushstream ledger 1", digest_size=16).digest()


class LedgerFile:
    """A durable `Ledger`. One process holds it open at a time."""

    def __init__(
        self,
        path: str | Path,
        mark_path: str | Path,
        filters: Mapping[str, Filter],
        kinds: Mapping[str, Filter] | None = None,
        older: Literal["refuse", "charge"] = "refuse",
    ) -> None:
        """Open or begin a ledger.

        Args:
            path: the ledger.
            mark_path: its high-water mark, in another folder.
            filters: limits by scope, see `Ledger`.
            kinds: limits by kind of scope, see `Ledger`.
            older: what to do with a ledger that is below its mark: refuse it, or charge what it lacks.

        Raises:
            LedgerError: in use by another process, damaged, without its mark, or older than its mark.
        """
        self._path, self._mark_path = Path(path), Path(mark_path)
        self._ledger = Ledger(filters, kinds)
        self._chain = _START
        self._broken = ""
        self._file = self._opened()
        try:
            self._read()
            for entry in self._ledger.raise_to(self._marks(), older):
                self._append(entry)
            self._write_marks()
        except BaseException:
            self.close()
            raise

    def try_debit(self, debit: Debit, entry_id: bytes) -> Debit | Exhausted:
        """`Ledger.try_debit`, on disk before it returns.

        Raises:
            LedgerError: see there; or the disk refused, and then this ledger refuses everything until it is
                opened anew.
        """
        if self._broken:
            raise LedgerError(f"ledger {self._path}: expected to be opened anew after: {self._broken}")
        known = self._ledger.holds(debit.scope, entry_id)
        answer = self._ledger.try_debit(debit, entry_id)
        if not known and isinstance(answer, Debit):
            self._append(Entry(entry_id, debit))
            self._write_marks()
        return answer

    def spent(self, scope: str) -> Cost:
        """See `Ledger.spent`."""
        return self._ledger.spent(scope)

    def left(self, scope: str) -> Cost:
        """See `Ledger.left`."""
        return self._ledger.left(scope)

    def entries(self, scope: str) -> tuple[Entry, ...]:
        """See `Ledger.entries`."""
        return self._ledger.entries(scope)

    def scopes(self) -> tuple[str, ...]:
        """See `Ledger.scopes`."""
        return self._ledger.scopes()

    def close(self) -> None:
        """Let another process open it."""
        self._file.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _opened(self) -> BinaryIO:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(f"ledger {self._path}: expected to open it, got: {error.strerror}") from None
        file = os.fdopen(descriptor, "r+b")
        if not _locked(file):
            file.close()
            raise LedgerError(f"ledger {self._path}: expected one writer, got a second; another process holds it")
        return file

    def _read(self) -> None:
        """Take over all whole lines; a torn last one was never answered, and so nothing was released under it."""
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            body, _, digest = line[:-1].rpartition(b" ")
            self._chain = _next(self._chain, body)
            if digest != self._chain.hex().encode():
                raise LedgerError(f"ledger {self._path}, line {number}: expected the digest of what stands before it")
            self._ledger.take(entry_from_json(_plain(self._path, body)))
            whole += len(line)
        self._file.seek(whole)
        self._file.truncate()

    def _append(self, entry: Entry) -> None:
        body = _canonical(entry_as_json(entry))
        self._chain = _next(self._chain, body)
        try:
            self._file.write(body + b" " + self._chain.hex().encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._refuse_from_now_on(self._path, error)

    def _marks(self) -> dict[str, tuple[int, ...]]:
        try:
            body, _, digest = self._mark_path.read_bytes().rstrip(b"\n").rpartition(b" ")
        except FileNotFoundError:
            if self._chain != _START:
                raise LedgerError(
                    f"ledger {self._path}: expected its high-water mark at {self._mark_path}, got none; without it an"
                    " older ledger cannot be told from the newest"
                ) from None
            return {}
        except OSError as error:
            raise LedgerError(
                f"high-water mark {self._mark_path}: expected to read it, got: {error.strerror}"
            ) from None
        if digest != _next(_START, body).hex().encode():
            raise LedgerError(f"high-water mark {self._mark_path}: expected the digest of its content, got another")
        return {scope: tuple(total) for scope, total in _plain(self._mark_path, body).items()}

    def _write_marks(self) -> None:
        body = _canonical({scope: list(total) for scope, total in self._ledger.marks().items()})
        fresh = self._mark_path.with_name(f"{self._mark_path.name}.new")
        try:
            with fresh.open("wb") as file:
                file.write(body + b" " + _next(_START, body).hex().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._mark_path)
        except OSError as error:
            self._refuse_from_now_on(self._mark_path, error)

    def _refuse_from_now_on(self, path: Path, error: OSError) -> None:
        self._broken = f"{path}: {error.strerror}"
        raise LedgerError(f"ledger: expected to write {path}, got: {error.strerror}; nothing may be released") from None


def _locked(file: BinaryIO) -> bool:
    """Whether this process alone holds the file now. Windows has no such lock: there the operator keeps to one."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _next(chain: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(chain + body, digest_size=16).digest()


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _plain(path: Path, body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        raise LedgerError(f"{path}: expected JSON, got something else") from None
    if not isinstance(value, dict):
        raise LedgerError(f"{path}: expected names and values, got {type(value).__name__}")
    return value
