"""A temporary file that nobody else can read: its content is sealed under a key that exists only in this process."""

from __future__ import annotations

import os
import struct
import tempfile
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

from hushstream.engine.state.sealed import SALT_BYTES, StorageSeal
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import KEY_BYTES, Key

_FRAME = struct.Struct("<I")
_PURPOSE = "spool"


class SealedSpool:
    """Holds bytes, more than fit into memory, that are written once and then read from the beginning.

    The file has no name, and its key is drawn here and written nowhere: nobody can open what a crash leaves on disk.
    """

    def __init__(self, folder: Path) -> None:
        """Open an empty spool in a folder.

        Raises:
            OSError: no file can be made there.
        """
        self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - closed by __exit__
        self._seal = StorageSeal("", "", 0, KeyRing(0, 0, (), Key(os.urandom(KEY_BYTES))))
        self._writer = self._seal.writer(_PURPOSE, os.urandom(SALT_BYTES))
        self._piece = BytesIO()

    def write(self, content: bytes) -> None:
        """Append bytes; raises OSError if the disk is full."""
        if content:
            sealed = self._writer.seal(content)
            self._file.write(_FRAME.pack(len(sealed)) + sealed)

    def rewind(self) -> None:
        """Go back to the beginning, to read; nothing may be written after this."""
        self._file.seek(0)
        self._piece = BytesIO()

    def read(self, size: int) -> bytes:
        """Read the next ``size`` bytes, or fewer at the end."""
        found = [self._piece.read(size)]
        missing = size - len(found[0])
        while missing > 0 and (head := self._file.read(_FRAME.size)):
            self._piece = BytesIO(self._seal.open(_PURPOSE, self._file.read(*_FRAME.unpack(head))))
            found.append(self._piece.read(missing))
            missing -= len(found[-1])
        return b"".join(found)

    def __enter__(self) -> SealedSpool:
        """Keep the spool open until the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file, which removes it."""
        self._file.close()
