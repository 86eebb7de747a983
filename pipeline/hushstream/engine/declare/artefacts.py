"""The files that preparation puts beside a configuration, and what preparation is given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hushstream.engine.values import ConfigurationError
from hushstream.privacy.key_files import KeyRing

PUBLIC_DATASET = "public-dataset.json"
"""Name of the file that says which public dataset is replayed. Only the folder of a replay has it."""


TAINTED = "tainted.json"
"""Name of the file that lists the inputs of preparation that are not private as stated, if there are any."""

_FIELD = "private_as_stated"
_WRAPPER = frozenset({"tainted", "content"})
"""Fields of what `marked` wraps a file in, besides that one."""
_NOT_PRIVATE = re.compile(r"NOT PRIVATE|(?im:^[ \t\ufeff]*#.*not[\s_-]*private)")


def is_tainted(text: str) -> bool:
    """Whether an input of preparation says that it is not private as stated: one rule for the inputs of all systems.

    Files that hushstream writes have a field for it, in which anything but true says so. Any other file says so in a
    first line, ``# NOT PRIVATE``, in letters of any case.
    """
    return _NOT_PRIVATE.search(text) is not None or _is_unstated(text.encode())


def _is_unstated(content: bytes) -> bool:
    """Whether this is JSON that has the field anywhere, with another value than true, or that nobody can read.

    A wrapper of `marked` counts with its list alone. The JSON may be in UTF-16 or UTF-32, as whoever reads it takes it.
    """
    if not any(one in content for one in (_FIELD.encode(), b"tainted", b"\\u", b"\0")):
        return False
    found: list[Any] = []

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found.extend(value for name, value in members if name == _FIELD)
        made = dict(members)
        if made.keys() >= _WRAPPER:
            found.append(False)
        return made

    try:
        json.loads(content, object_pairs_hook=pairs)
    except RecursionError:
        return True
    except ValueError:
        return False
    return any(value is not True for value in found)


def marked(content: bytes, tainted: Sequence[str]) -> bytes:
    """A prepared file; one that was made from tainted inputs gets a mark, which it keeps when it is copied alone.

    A file that says so itself stays as it is.
    """
    if not tainted or _is_unstated(content):
        return content
    made = {_FIELD: False, "tainted": [*tainted], "content": json.loads(content)}
    return json.dumps(made).encode()


class Artefacts(NamedTuple):
    """The prepared files beside a configuration.

    Attributes:
        where: name of the folder, for errors.
        files: contents by name.
    """

    where: str
    files: Mapping[str, bytes]

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return name in self.files

    def path(self, name: str) -> str:
        """How errors name a file."""
        return f"{self.where}/{name}"

    @property
    def public_dataset(self) -> str | None:
        """The public dataset that is replayed in the folder; None for a deployment.

        No configuration has this setting, and no command for deployments writes the file.

        Raises:
            ConfigurationError: the file is damaged.
        """
        name = self._replayed.get("dataset")
        if self.has(PUBLIC_DATASET) and (not isinstance(name, str) or not name):
            raise ConfigurationError(f"{self.path(PUBLIC_DATASET)}: expected the name of a public dataset, got none")
        return name

    @property
    def tainted(self) -> tuple[str, ...]:
        """The inputs of preparation that are not private as stated, in order.

        An input that says so itself counts also where nobody has listed it, as in a folder that it was copied to.

        Raises:
            ConfigurationError: the file is damaged.
        """
        listed = self.json(TAINTED, "names of inputs") if self.has(TAINTED) else []
        if not isinstance(listed, list):
            raise ConfigurationError(f"{self.path(TAINTED)}: expected a list of names of inputs, got another value")
        saying = [name for name, content in self.files.items() if _is_unstated(content)]
        for name in saying:
            read = json.loads(self.files[name])
            named = read.get("tainted") if isinstance(read, dict) else None
            listed = [*listed, *(named if named and isinstance(named, list) else [name.removesuffix(".json")])]
        return tuple(sorted(set(map(str, listed))))

    @property
    def _replayed(self) -> dict[str, Any]:
        """The content of the file `PUBLIC_DATASET`; empty if there is none."""
        if not self.has(PUBLIC_DATASET):
            return {}
        content = self.json(PUBLIC_DATASET, "the name of a public dataset")
        return content if isinstance(content, dict) else {}

    def json(self, name: str, what: str) -> Any:
        """The content of a JSON file.

        Raises:
            ConfigurationError: it is missing, or no JSON.
        """
        if name not in self.files:
            raise ConfigurationError(f"{self.path(name)}: expected {what}, got none; run `hushstream prepare`")
        try:
            read = json.loads(self.files[name])
        except ValueError as error:
            raise ConfigurationError(
                f"{self.path(name)}: expected {what} as JSON, got {type(error).__name__}"
            ) from None
        return read["content"] if isinstance(read, dict) and read.keys() >= _WRAPPER else read


class Given(NamedTuple):
    """The input of preparation.

    Attributes:
        artefacts: files that were prepared before; they are never changed.
        inputs: the files that were given as options, by the names of `Kind.inputs`, as (path, text).
        keys: the available key files by zone; None if there are none.
    """

    artefacts: Artefacts
    inputs: Mapping[str, tuple[str, str]]
    keys: Callable[[str], KeyRing] | None


@dataclass(frozen=True, slots=True)
class PreparedFrom:
    """A file that preparation may be given.

    Attributes:
        name: of the option that names it.
        help: what it holds.
    """

    name: str
    help: str


@dataclass(frozen=True, slots=True)
class PublishedKey:
    """A key whose public half is an artefact, and how a later key is added.

    Attributes:
        zone: zone of the key.
        artefact: the file.
        use: what the key is used for, in words ("slots are sealed to").
        period_ms: length of a period by the configuration; a new key is valid from the beginning of a period. None if a
            key is valid from a version of the model.
        publish: returns the new file and the key's public half, from the old file, the key file and the first period or
            version.
    """

    zone: str
    artefact: str
    use: str
    period_ms: Callable[[Any], int] | None
    publish: Callable[[Artefacts, KeyRing, int], tuple[bytes, bytes]]
