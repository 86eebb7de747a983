"""A deployment on disk: its configuration, what was prepared for it, and its keys.

A deployment's folder holds ``deployment.yaml`` (what an operator writes), what `hushstream prepare` made
(`hushstream.agents.prepared`) and, per trust zone, a key file. Workers of one role need the folder and the key of
their own zone, nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import TypeAdapter, ValidationError

from hushstream.agents.prepared import (
    ENCODER,
    RELATION,
    SEALING,
    read_encoder,
    read_relation,
    read_sealing,
    write_encoder,
    write_relation,
    write_sealing,
)
from hushstream.agents.yaml_file import read_yaml
from hushstream.engine.system import System
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.key_files import KeyRing, load_key, load_ring
from hushstream.privacy.keys import Key, Zone, key_path, seeded_key
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import CollaborativeConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.deployment import P2BSystem

CONFIGURATION = "deployment.yaml"
KEYS = "keys"
ENVIRONMENT_PREFIX = "HUSHSTREAM__"
"""``HUSHSTREAM__RELEASE__EPSILON=0.5`` overrides ``release: {epsilon: ...}``."""

AnyConfig: TypeAlias = P2BConfig | CollaborativeConfig

_CONFIGS: Mapping[str, TypeAdapter[Any]] = {"p2b": TypeAdapter(P2BConfig), "colin": TypeAdapter(CollaborativeConfig)}
_CLASS_NAMES = ("P2BConfig", "CollaborativeConfig")


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where keys come from: the files of a folder, or (experiments on public data only) a seed."""

    folder: Path | None = None
    seed: int | None = None

    def key(self, zone: Zone) -> Key:
        """The key of one zone.

        Raises:
            HushstreamError: no source was given, or the key file is missing, short or readable by others.
        """
        if self.seed is not None:
            return seeded_key(self.seed, zone.value)
        if self.folder is None:
            raise HushstreamError("keys: expected a key folder; `hushstream keys generate` makes one")
        return load_key(key_path(self.folder, zone))

    def ring(self, zone: Zone) -> KeyRing:
        """All keys of one zone that are kept, and which one new journals begin with; raises as `key` does."""
        if self.seed is not None or self.folder is None:
            return KeyRing(0, 0, (), self.key(zone))
        return load_ring(key_path(self.folder, zone))

    def of_journal(self, zone: Zone, genesis: bytes) -> Key:
        """The key that a journal was begun with, from its first record: keys may have been turned since.

        Raises:
            RetiredKey: it was destroyed; what was released under it can be derived by nobody.
            HushstreamError: as `key`; or the record is no genesis, or of a key that the file never held.
        """
        if self.seed is not None or self.folder is None:
            return self.key(zone)
        _, fields = codec.decode(genesis, frozenset({"Genesis"}))
        return self.ring(zone).named(fields["key_id"])


def parse_config(values: Any, source: str = "configuration") -> AnyConfig:
    """A configuration from plain values; unknown keys are refused.

    Raises:
        ConfigurationError: names the first wrong key, what was expected and what came.
    """
    name = values.get("system", "p2b") if isinstance(values, dict) else "p2b"
    if name not in _CONFIGS:
        raise ConfigurationError(f"{source}: system: expected one of {', '.join(_CONFIGS)}, got {name!r}")
    try:
        config: AnyConfig = _CONFIGS[name].validate_python(values)
        return config
    except ValidationError as error:
        problems = [
            f"{source}: {'.'.join(str(part) for part in found['loc'] if part not in _CLASS_NAMES) or 'top level'}: "
            f"{found['msg']}"
            for found in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigurationError("\n".join(problems)) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None


def parse_p2b(values: Any, source: str = "configuration") -> P2BConfig:
    """`parse_config` where only p2b will do.

    Raises:
        ConfigurationError: as `parse_config`; or it is of another system.
    """
    config = parse_config(values, source)
    if not isinstance(config, P2BConfig):
        raise ConfigurationError(f"{source}: system: expected p2b, got {config.system}")
    return config


def read_config(path: Path) -> AnyConfig:
    """Read ``deployment.yaml``; environment variables override single values.

    Raises:
        ConfigurationError: missing, not YAML, or with impossible or unknown values.
    """
    return parse_config(_overridden(read_yaml(path)), str(path))


def read_p2b(path: Path) -> P2BConfig:
    """`read_config` where only p2b will do.

    Raises:
        ConfigurationError: as `read_config`; or it is of another system.
    """
    return parse_p2b(_overridden(read_yaml(path)), str(path))


def write_config(config: AnyConfig, path: Path) -> None:
    """Write a configuration as YAML, complete."""
    path.write_text(yaml.safe_dump(asdict(config), sort_keys=False), encoding="utf-8")


def prepare(folder: Path, config: AnyConfig, graph: SocialGraph | None = None, keys: KeySource | None = None) -> System:
    """Make a deployment's folder: configuration, and what is prepared for it.

    For p2b that is the encoder (fitted here, which needs the ``replay`` extra); for a collaborative system the
    relation ``graph`` of its users. Where slots are sealed, the public half of the sealing key among ``keys`` is
    published in it. What is there already is kept, so that the deployment's digest does not change.

    Raises:
        ConfigurationError: the folder belongs to another configuration, graph or sealing key; or slots are sealed and
            neither it nor ``keys`` says to whom.
    """
    make_folder(folder, config, graph, keys)
    return load(folder)


def make_folder(
    folder: Path, config: AnyConfig, graph: SocialGraph | None = None, keys: KeySource | None = None
) -> None:
    """`prepare`, for a process that only makes the folder; raises as that does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CONFIGURATION
    if path.exists() and read_config(path) != config:
        raise ConfigurationError(f"{path}: expected the configuration at hand or none, got another one")
    write_config(config, path)
    if isinstance(config, P2BConfig):
        if config.slot.sealed and keys is not None:
            write_sealing(keys.key(Zone.SEALING), folder / SEALING)
        if not (folder / ENCODER).exists():
            sealing = read_sealing(folder / SEALING) if config.slot.sealed else None
            write_encoder(P2BSystem.fitted(config, sealing), folder / ENCODER)
        return
    if graph is not None:
        if (folder / RELATION).exists() and read_relation(folder / RELATION).canonical() != graph.canonical():
            raise ConfigurationError(f"{folder / RELATION}: expected the graph at hand or none, got another one")
        write_relation(graph, folder / RELATION)


def load(folder: Path) -> System:
    """Read a deployment's folder.

    Raises:
        ConfigurationError: a file is missing or does not fit the other.
    """
    config = read_config(folder / CONFIGURATION)
    if isinstance(config, P2BConfig):
        return read_encoder(config, folder / ENCODER)
    return CollaborativeSystem.of(config, read_relation(folder / RELATION))


def _overridden(values: dict[str, Any]) -> dict[str, Any]:
    """The values with what the environment says in their place."""
    for name, text in sorted(os.environ.items()):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        keys = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        place = values
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ConfigurationError(f"{name}: expected the name of a value, got one below a value")
        try:
            place[keys[-1]] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigurationError(f"{name}: expected a YAML value, got {type(error).__name__}") from None
    return values
