"""What lies beside a configuration once a deployment was prepared, and what preparation is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hushstream.engine.values import ConfigurationError
from hushstream.privacy.key_files import KeyRing

PUBLIC_DATASET = "public-dataset.json"
"""Says, in the folder of a replay alone, which public dataset is replayed there."""


class Artefacts(NamedTuple):
    """What lies beside a configuration: files by name, and where they are, for errors.

    Attributes:
        where: the folder's name.
        files: their bytes.
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
        """Which public dataset is replayed in the folder; None for a deployment.

        No configuration can say so, and no command of a deployment writes it.

        Raises:
            ConfigurationError: the file is damaged.
        """
        name = self._replayed.get("dataset")
        if self.has(PUBLIC_DATASET) and (not isinstance(name, str) or not name):
            raise ConfigurationError(f"{self.path(PUBLIC_DATASET)}: expected the name of a public dataset, got none")
        return name

    @property
    def non_private_arm(self) -> bool:
        """Whether the public dataset's exact interactions travel in clear, for a model to compare private ones with.

        Raises:
            ConfigurationError: the file is damaged.
        """
        found = self._replayed.get("non_private_arm", True)
        if not isinstance(found, bool):
            raise ConfigurationError(
                f"{self.path(PUBLIC_DATASET)}: non_private_arm: expected true or false, got another"
            )
        return self.public_dataset is not None and found

    @property
    def _replayed(self) -> dict[str, Any]:
        """What the folder says of the public dataset that is replayed in it; empty without one."""
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
            return json.loads(self.files[name])
        except ValueError as error:
            raise ConfigurationError(
                f"{self.path(name)}: expected {what} as JSON, got {type(error).__name__}"
            ) from None


class Given(NamedTuple):
    """What preparation starts from.

    Attributes:
        artefacts: what was prepared before, which is never changed.
        inputs: the files that were named for it, by the names of `Kind.inputs`, as (path, text).
        keys: the key files at hand, by zone; None where none are.
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
    """A key whose public half is among the artefacts, and how a later one is put beside it.

    Attributes:
        zone: whose key.
        artefact: the file.
        use: what is done with it, for people ("slots are sealed to").
        period_ms: how long a period is, by the configuration: a new key holds from the beginning of one. None where it
            holds from a version of the model on.
        publish: the new file and the key's public half, from the old one, the key file and the first period or version.
    """

    zone: str
    artefact: str
    use: str
    period_ms: Callable[[Any], int] | None
    publish: Callable[[Artefacts, KeyRing, int], tuple[bytes, bytes]]
