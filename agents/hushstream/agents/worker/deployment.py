"""A deployment on disk: its configuration, what was prepared for it, and its keys.

A deployment's folder holds ``deployment.yaml`` (what an operator writes), what `hushstream prepare` made
(`hushstream.engine.declare.declaration.Kind.prepare`) and, per trust zone, a key file. Workers of one role need the
folder and the key of their own zone, nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from hushstream.agents.faults import faults_of
from hushstream.agents.yaml_file import KeyLines, read_yaml_lines
from hushstream.engine.declare.artefacts import PUBLIC_DATASET, TAINTED, Artefacts, Given, is_tainted, marked
from hushstream.engine.declare.declaration import Kind, System
from hushstream.engine.declare.role import DeclarationError
from hushstream.engine.devices.published import AGREEMENT, PUBLIC_KEYS
from hushstream.engine.system import DeploymentValues, require_named
from hushstream.engine.values import ConfigurationError
from hushstream.features.checks import Unconfirmed, private_settings, require_confirmed, without_marks
from hushstream.privacy.key_files import KeyRing, load_key, load_ring
from hushstream.privacy.keys import Key, key_path, seeded_key
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import DEFAULT, kind_of

CONFIGURATION = "deployment.yaml"
KEYS = "keys"
ENVIRONMENT_PREFIX = "HUSHSTREAM__"
"""``HUSHSTREAM__PRIVACY__EPSILON=0.5`` overrides ``privacy: {epsilon: ...}``."""

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True, slots=True)
class KeySource:
    """Gives the keys of zones: from the files of a folder, or from a seed (only for experiments on public data)."""

    folder: Path | None = None
    seed: int | None = None

    def key(self, zone: str) -> Key:
        """The key of one zone.

        Raises:
            HushstreamError: no source was given, or the key file is missing, short or readable by others.
        """
        if self.seed is not None:
            return seeded_key(self.seed, zone)
        if self.folder is None:
            raise HushstreamError("keys: expected a key folder; `hushstream keys generate` makes one")
        return load_key(key_path(self.folder, zone))

    def ring(self, zone: str) -> KeyRing:
        """All keys that the zone's file holds, and which of them new journals use; raises as `key` does."""
        if self.seed is not None or self.folder is None:
            return KeyRing(0, 0, (), self.key(zone))
        return load_ring(key_path(self.folder, zone))

    def storage(self, zone: str) -> KeyRing | None:
        """The keys of a storage key file (`hushstream.privacy.key_files.storage_zone`); None if there is no such file.

        Raises:
            HushstreamError: the file is short or readable by others.
        """
        if self.seed is not None:
            return KeyRing(0, 0, (), seeded_key(self.seed, zone))
        if self.folder is None or not key_path(self.folder, zone).exists():
            return None
        return load_ring(key_path(self.folder, zone))

    def of_journal(self, zone: str, genesis: bytes) -> Key:
        """The key under which a journal begins, by its first record: the zone's keys may have been rotated since.

        Raises:
            RetiredKey: the key was destroyed; nobody can derive again what was released under it.
            HushstreamError: as `key`; or the record is no genesis, or names a key that the file never held.
        """
        if self.seed is not None or self.folder is None:
            return self.key(zone)
        _, fields = codec.decode(genesis, frozenset({"Genesis"}))
        return self.ring(zone).named(fields["key_id"])


@cache
def _adapter(kind: Kind) -> TypeAdapter[Any]:
    return TypeAdapter(kind.config)


def parse_config(values: Any, source: str = "configuration", lines: KeyLines | None = None) -> Any:
    """Make a configuration, of the class of its system, from plain values; unknown keys are refused.

    Args:
        values: nested, as in YAML.
        source: the file that the values come from, for messages.
        lines: the line of each key in that file.

    Raises:
        ConfigurationError: names every wrong key, with the expected and the given value.
    """
    _require_confirmed(values, source)
    kind = system_named(values, source, lines)
    attributes, refused = kind.language.read(values)
    try:
        if not refused:
            return _adapter(kind).validate_python(attributes)
    except (ValidationError, ConfigurationError):
        pass  # Reported below, with all other faults.
    found = faults_of(_adapter(kind).validate_python, kind.language, values)
    lines_of_faults = [f"{_place(source, lines, one.key)}: {one}" for one in found]
    raise ConfigurationError("\n".join(lines_of_faults))


def _require_confirmed(values: Any, source: str) -> None:
    """Refuse unconfirmed settings that a draft took from rows about persons: a deployment would publish them."""
    try:
        require_confirmed(values)
    except Unconfirmed as error:
        raise ConfigurationError(f"{source}: {error}") from None


def system_named(values: Any, source: str, lines: KeyLines | None = None) -> Kind:
    """The kind of system that the configuration's ``system`` key names."""
    name = values.get("system", DEFAULT) if isinstance(values, dict) else DEFAULT
    try:
        return kind_of(name)
    except DeclarationError as error:
        raise ConfigurationError(f"{_place(source, lines, ('system',))}: {error}") from None


def _place(source: str, lines: KeyLines | None, key: tuple[str, ...]) -> str:
    """The file of a key of the configuration, and its line if it is known, for messages."""
    line = (lines or {}).get(key)
    return source if line is None else f"{source}, line {line}"


def parse_as(made: type[ConfigT], values: Any, source: str = "configuration") -> ConfigT:
    """Do what `parse_config` does, but accept only configurations of the class ``made``.

    Raises:
        ConfigurationError: as `parse_config`; or the configuration is of another system.
    """
    kind = system_named(values, source)
    if kind.config is not made:
        raise ConfigurationError(f"{source}: system: expected a {made.__name__}, got system {kind.name}")
    config: ConfigT = parse_config(values, source)
    return config


def read_config(path: Path) -> Any:
    """Read ``deployment.yaml``; environment variables override single values.

    Raises:
        ConfigurationError: the file is missing or not YAML, or has impossible or unknown values.
    """
    return _read(path)[0]


def read_draft(path: Path) -> tuple[Any, list[str]]:
    """Read a draft of a configuration, and list its settings that were taken from rows and are not confirmed as public.

    A draft serves only to look at the rows that it was made from: `prepare` refuses it while it has such settings.

    Raises:
        ConfigurationError: as `read_config`, except for unconfirmed settings.
    """
    return _read(path, drafted=True)


def _read(path: Path, *, drafted: bool = False) -> tuple[Any, list[str]]:
    values, lines = read_yaml_lines(path)
    for keys in _overrides():
        lines.pop(keys, None)
    given = _overridden(values)
    unconfirmed = private_settings(given) if drafted else []
    return parse_config(without_marks(given) if drafted else given, str(path), lines), unconfirmed


def written(config: DeploymentValues) -> dict[str, Any]:
    """A configuration as plain values, with all of its keys, as `parse_config` reads them."""
    return kind_of(config.system).language.written(config)


def _as_yaml(config: DeploymentValues) -> bytes:
    return yaml.safe_dump(written(config), sort_keys=False).encode()


def artefacts_of(folder: Path) -> Artefacts:
    """Read the files beside a configuration that preparation may have made."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    return Artefacts(str(folder), {path.name: path.read_bytes() for path in files})


def require_releases(config: DeploymentValues, where: str) -> None:
    """Refuse a configuration by which nothing can ever be released.

    Raises:
        ConfigurationError: says why, and what to state instead.
    """
    for note in kind_of(config.system).notes(config):
        if note.weight == "never":
            raise ConfigurationError(f"{where}: {note.text}")


def prepare(
    folder: Path,
    config: DeploymentValues,
    inputs: Mapping[str, tuple[str, str]] | None = None,
    keys: KeySource | None = None,
    public_dataset: str | None = None,
) -> System:
    """Make a deployment's folder: write the configuration and what its system prepares for it.

    Files that exist are kept, so that the deployment's digest does not change.

    Args:
        folder: the folder of the deployment.
        config: of any system.
        inputs: the files that the system takes for preparation, as (path, text), by the names of `Kind.inputs`.
        keys: where keys come from, if the public half of a key is to be published.
        public_dataset: the dataset that a replay plays there; None for a live deployment. This cannot be changed later.

    Raises:
        ConfigurationError: the folder belongs to another configuration, or the system refuses to prepare it.
    """
    content = _contents(folder, config, inputs, keys, _purpose(folder, public_dataset))
    there = artefacts_of(folder)
    system = kind_of(config.system).assemble(config, Artefacts(there.where, {**there.files, **content}))
    _write(folder, config, content)
    return system


def make_folder(
    folder: Path,
    config: DeploymentValues,
    inputs: Mapping[str, tuple[str, str]] | None = None,
    keys: KeySource | None = None,
    public_dataset: str | None = None,
) -> None:
    """Make the folder as `prepare` does, without loading the system from it; raises as `prepare` does."""
    _write(folder, config, _contents(folder, config, inputs, keys, _purpose(folder, public_dataset)))


def _contents(
    folder: Path,
    config: DeploymentValues,
    inputs: Mapping[str, tuple[str, str]] | None,
    keys: KeySource | None,
    purpose: Mapping[str, bytes],
) -> Mapping[str, bytes]:
    """The files to write beside the configuration. Nothing is written here, so a refusal leaves no files behind."""
    kind, given = kind_of(config.system), dict(inputs or {})
    unknown = sorted(set(given) - {one.name for one in kind.inputs})
    if unknown:
        known = ", ".join(f"--{one.name}" for one in kind.inputs) or "no file"
        raise ConfigurationError(f"prepare: expected {known} for system {kind.name}, got --{unknown[0]}")
    path = folder / CONFIGURATION
    if path.exists() and read_config(path) != config:
        raise ConfigurationError(
            f"{path}: the configuration of a deployment is frozen: expected the one that was prepared, got another; "
            f"prepare the changed one in another folder and under another name"
        )
    there = artefacts_of(folder)
    tainted = sorted({*there.tainted, *(name for name, (_, text) in given.items() if is_tainted(text))})
    if not purpose:
        require_named(config, tainted, str(path))
    # The first line that marks a table is no row of it.
    given = {name: (where, _MARK.sub("", text)) for name, (where, text) in given.items()}
    made = kind.prepare(config, Given(there, given, None if keys is None else keys.ring))
    if tainted and AGREEMENT in made:
        raise ConfigurationError(
            f"{path}: expected inputs that are private as stated where learners are devices, whose agreement "
            f"guarantees users so, got {', '.join(tainted)} marked as not private"
        )
    # Public keys follow from no input.
    made = {name: content if name in PUBLIC_KEYS else marked(content, tainted) for name, content in made.items()}
    # The mark comes first: where preparation ends in between, no file is without it.
    return {**({TAINTED: json.dumps(tainted).encode()} if tainted else {}), **purpose, **made}


def _write(folder: Path, config: DeploymentValues, content: Mapping[str, bytes]) -> None:
    """Write the files, and the configuration last: a folder that has a configuration is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, artefact in content.items():
        write_artefact(folder / name, artefact)
    write_artefact(folder / CONFIGURATION, _as_yaml(config))


def write_artefact(path: Path, content: bytes) -> None:
    """Write a file completely or not at all.

    Raises:
        ConfigurationError: it cannot be written, for instance because the disk is full; nothing is left of it.
    """
    beside = path.with_name(f".{path.name}.tmp")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise ConfigurationError(f"{path}: expected a file to write to, got: {error.strerror}") from None


_MARK = re.compile(r"\A\ufeff?#[^\n]*not\s+private[^\n]*\n", re.IGNORECASE)

_PURPOSES = ("a deployment", "a replay of a public dataset")


def _purpose(folder: Path, public_dataset: str | None) -> Mapping[str, bytes]:
    """The files that mark a folder as that of a replay, if it is one; refuses a folder made for another purpose."""
    found = artefacts_of(folder)
    asked, there = public_dataset is not None, found.public_dataset is not None
    if (folder / CONFIGURATION).exists() and asked != there:
        raise ConfigurationError(f"{folder}: expected the folder of {_PURPOSES[asked]}, got that of {_PURPOSES[there]}")
    if public_dataset is None:
        return {}
    return {PUBLIC_DATASET: json.dumps({"dataset": public_dataset}).encode() + b"\n"}


def configuration_in(folder: Path) -> Path:
    """The configuration file in a deployment's folder; it may be missing.

    Raises:
        ConfigurationError: a file was given in place of the folder.
    """
    if folder.is_file():
        instead = (
            f"give its folder, {folder.parent}"
            if folder.name == CONFIGURATION
            else f"`hushstream prepare {folder}` makes one"
        )
        raise ConfigurationError(f"{folder}: expected the folder of a deployment, got a file; {instead}")
    return folder / CONFIGURATION


def load(folder: Path) -> System:
    """Read a deployment's folder.

    Raises:
        ConfigurationError: a file is missing or was given in place of the folder, or the files do not fit together.
    """
    config = read_config(configuration_in(folder))
    return kind_of(config.system).assemble(config, artefacts_of(folder))


def _overridden(values: dict[str, Any]) -> dict[str, Any]:
    """The configuration's values, overridden by those of the environment."""
    for keys, (name, text) in _overrides().items():
        place = values
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ConfigurationError(f"{name}: expected the name of a value, got one below a value")
        try:
            place[keys[-1]] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigurationError(f"{name}: expected a YAML value, got another text") from None
    return values


def _overrides() -> dict[tuple[str, ...], tuple[str, str]]:
    """The keys that the environment overrides, each with the variable's name and text."""
    named = {
        name.removeprefix(ENVIRONMENT_PREFIX): name
        for name in sorted(os.environ)
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    return {tuple(short.lower().split("__")): (name, os.environ[name]) for short, name in named.items()}
