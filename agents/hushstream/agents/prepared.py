"""What is prepared once for a deployment and must be the same for all its workers.

``encoder.json`` (p2b): the centroids that were fitted once, as whole numbers, since another machine's k-means may
find others. ``sealing.json`` (p2b with sealed slots): the shuffler's public keys. ``relation.json`` (collaborative
systems): users in their order, and weighted ties between them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hushstream.engine.values import ConfigurationError
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.errors import BadSeal
from hushstream.systems.p2b.contribution.recipients import Recipient, Recipients
from hushstream.systems.p2b.deployment import P2BSystem

ENCODER = "encoder.json"
SEALING = "sealing.json"
RELATION = "relation.json"


def write_encoder(system: P2BSystem, path: Path) -> None:
    """Write a fitted encoder."""
    content = {"digits": system.config.context.digits, "centroids": system.encoder.lattice.tolist()}
    path.write_text(json.dumps(content), encoding="utf-8")


def read_encoder(config: P2BConfig, path: Path) -> P2BSystem:
    """Join a configuration with the encoder that was fitted for it, and the sealing keys that lie beside it.

    Raises:
        ConfigurationError: one is missing, damaged, or belongs to another configuration.
    """
    content = _json(path, "the fitted encoder")
    try:
        lattice, digits = np.array(content["centroids"]), content["digits"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path}: expected centroids as whole numbers, got {type(error).__name__}") from None
    if lattice.dtype != np.int64:
        raise ConfigurationError(f"{path}: expected centroids as whole numbers, got {lattice.dtype}")
    if lattice.ndim != 2:
        raise ConfigurationError(f"{path}: expected centroids of shape (k, d), got {lattice.shape}")
    if digits != config.context.digits:
        raise ConfigurationError(
            f"{path}: expected centroids fitted for {config.context.digits} digits, got {digits!r}; "
            f"it belongs to another configuration"
        )
    return P2BSystem.of(config, lattice, read_sealing(path.with_name(SEALING)) if config.slot.sealed else None)


def write_sealing(key: Key, path: Path) -> None:
    """Publish the public half of the shuffler's sealing key, the first of a deployment.

    Raises:
        ConfigurationError: others were published there: slots are sealed to them, and agents have agreed to the first.
    """
    first = Recipients.first(key)
    if not path.exists():
        _write_recipients(first, path)
    elif first.keys[0].public_key not in [one.public_key for one in read_sealing(path).keys]:
        raise ConfigurationError(f"{path}: expected the public half of the sealing key at hand or none, got another")


def publish_sealing(ring: KeyRing, path: Path, from_period: int) -> Recipients:
    """Publish the public half of the key file's current sealing key, for slots from a report period on.

    Args:
        ring: the sealing key's file, which still holds the key before it.
        path: what is published.
        from_period: when every learner has read the new file.

    Raises:
        ConfigurationError: it is published already, the key before it is not at hand, or the period is not later.
    """
    try:
        made = read_sealing(path).followed_by(ring.of(ring.current), from_period, ring.kept())
    except BadSeal as error:
        raise ConfigurationError(f"{path}: {error}") from None
    _write_recipients(made, path)
    return made


def read_sealing(path: Path) -> Recipients:
    """The shuffler's public keys.

    Raises:
        ConfigurationError: they are missing, damaged, or not vouched for.
    """
    content = _json(path, "the shuffler's public keys")
    try:
        return Recipients(
            tuple(
                Recipient(
                    bytes.fromhex(one["public_key"]),
                    bytes.fromhex(one["vouch_key"]),
                    int(one["from_period"]),
                    bytes.fromhex(one["vouched"]),
                )
                for one in content["keys"]
            )
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path}: expected public keys in hexadecimal, got {type(error).__name__}") from None
    except BadSeal as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _write_recipients(recipients: Recipients, path: Path) -> None:
    keys = [
        {
            "public_key": one.public_key.hex(),
            "vouch_key": one.vouch_key.hex(),
            "from_period": one.from_period,
            "vouched": one.vouched.hex(),
        }
        for one in recipients.keys
    ]
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(json.dumps({"keys": keys}, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def write_relation(graph: SocialGraph, path: Path) -> None:
    """Write a relation graph in its canonical form."""
    path.write_bytes(graph.canonical())


def read_relation(path: Path) -> SocialGraph:
    """Read a relation graph as `write_relation` wrote it.

    Raises:
        ConfigurationError: it is missing or damaged.
        RelationError: it is no graph of its users.
    """
    content = _json(path, "users and their ties")
    try:
        users = [str(user) for user in content[0]]
        ties = [(users[one], users[other], float(weight)) for one, other, weight in content[1]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path}: expected users and their ties, got {type(error).__name__}") from None
    return SocialGraph.of_edges(ties, users)


def read_edge_list(path: Path, users: Path | None = None) -> SocialGraph:
    """Read a public graph from lines ``user,user`` or ``user,user,weight``.

    Args:
        path: the edge list.
        users: one user a line, in the order of their nodes; by default those that the edges name, sorted.

    Raises:
        ConfigurationError: a file cannot be read.
        RelationError: a line is something else, or it is no graph of its users.
    """
    names = None if users is None else [line.strip() for line in _text(users).splitlines() if line.strip()]
    return SocialGraph.parse(_text(path), names)


def _json(path: Path, what: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: expected {what}, got none; run `hushstream prepare`") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: expected {what} as JSON, got {type(error).__name__}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: expected a readable list, got {type(error).__name__}") from None
