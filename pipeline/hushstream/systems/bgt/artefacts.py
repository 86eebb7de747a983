"""The prepared files of a deployment.

``features.json``: public features of its items, if there are any. If devices make slots, ``sealing.json`` and
``signing.json``: the public keys of the collector and of the aggregator; and ``agreement.json``, which applications
ship.

*Deployment.* A BGTplanner deployment: the object that all its roles use.

Stages, in order: one fixed-size report of a user and round (edge) -> sums of all slots with noise (collector) -> item
biases, the test for factors, factors, and the next round (server) -> the next round's slots, and predictions (edge).

Source: Zhang et al., BGTplanner (2024), in a form that is sound: `hushstream.systems.bgt.guarantee` has the
proofs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hushstream.engine.declare.artefacts import Artefacts, Given, PreparedFrom
from hushstream.engine.devices.agreed import FORMAT
from hushstream.engine.devices.published import AGREEMENT, first_keys, read_sealing, read_signing
from hushstream.engine.devices.sealing import Recipients, body_bytes
from hushstream.engine.devices.signing import SigningKeys
from hushstream.engine.system import Core
from hushstream.engine.values import MAX_RECORD_BYTES, ConfigurationError, require
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.systems.bgt.configuration import BgtConfig, Kind, bgt_digest
from hushstream.systems.bgt.guarantee import MECHANISM, priced, variance_of
from hushstream.systems.bgt.records import (
    ROUNDS,
    Float64,
    features_bytes,
    features_file,
    features_of,
    parse_features,
    slot_bytes,
)

TRACK = "ratings"
"""The one model track."""

_ROOM_BYTES = 1 << 16
"""Bytes of a record without its columns."""


@dataclass(frozen=True, eq=False)
class BgtSystem(Core[BgtConfig]):
    """A configuration, joined with public features of items and whether a public dataset is replayed.

    Attributes:
        features: (I, f) public features of items.
        sealing, signing: the public keys of the collector and of the aggregator, if devices make slots.
    """

    features: Float64
    sealing: Recipients | None = None
    signing: SigningKeys | None = None

    @classmethod
    def of(
        cls,
        config: BgtConfig,
        features: Float64,
        public_dataset: bool = False,
        sealing: Recipients | None = None,
        signing: SigningKeys | None = None,
    ) -> BgtSystem:
        """Make a deployment.

        Raises:
            ConfigurationError: a model of this size would not fit into a record, or the budget does not cover one
                epoch.
        """
        require_publishable(config)
        hosted = not (config.devices and public_dataset)
        require(hosted, "kind", "hosted in a replay, whose raters are workers", config.kind)
        pinned = b"".join(keys.pinned for keys in (sealing, signing) if keys is not None)
        digest = bgt_digest(config, features_bytes(features), public_dataset, pinned)
        return cls(config, digest, priced(config), features, sealing, signing, public_dataset=public_dataset)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions: users are spread over those of raters; there is one collector."""
        return {"learner": self.config.partitions.learner, "shuffler": 1, "scopes": 1, "tracks": 1}

    def address(self, nonce: bytes, epoch: int, partition: int) -> NoiseAddress:
        """The address of a collector's noise in one journal and epoch; see `bgt_address`."""
        return bgt_address(self.config, self.digest, nonce, epoch, partition)

    def parameters(self, number: int, kind: Kind) -> str:
        """Every parameter of the noise of a round, whose slots are of one kind, as in the journal."""
        values: dict[str, Any] = {"kind": kind}
        if self.config.release.noise != "exact":
            values["variance"] = "/".join(map(str, variance_of(number, kind, self.config)))
        return json.dumps(values, sort_keys=True, separators=(",", ":"))


def bgt_address(config: BgtConfig, digest: bytes, nonce: bytes, epoch: int, partition: int = 0) -> NoiseAddress:
    """The address of a collector's noise; round and content are filled in for each release."""
    return NoiseAddress(
        purpose="release-noise",
        deployment=config.deployment,
        genesis_nonce=nonce,
        system=config.system,
        mechanism=MECHANISM,
        parameters={},
        config_digest=digest,
        epoch=epoch,
        partition=partition,
    )


def require_publishable(config: BgtConfig) -> None:
    """Refuse a configuration whose records would be too large, before anything runs.

    Raises:
        ConfigurationError: sums or a model of so many items do not fit one record.
    """
    a_row = 8 * max(2, 1 + config.release.factors)
    most = (MAX_RECORD_BYTES - _ROOM_BYTES) // a_row
    expected = f"at most {most} (a record holds {a_row} bytes an item, with release.factors {config.release.factors})"
    require(config.items <= most, "items.capacity", expected, config.items)


FEATURES = "features.json"
TABLE = PreparedFrom("features", "public features of the items: item,number,...,number a line")


def prepare(config: BgtConfig, given: Given) -> Mapping[str, bytes]:
    """Copy the public features of items, and publish the keys that devices use.

    Raises:
        ConfigurationError: neither the prepared files nor the key files hold the public keys; the configuration
            declares features and none are given, or the reverse; other features were prepared before; or a model of
            this size would not fit into a record.
    """
    BgtSystem.of(config, _zero_features(config))
    made = {**_features(config, given)}
    if config.devices:
        made |= first_keys(given)
        artefacts = Artefacts(given.artefacts.where, {**given.artefacts.files, **made})
        made[AGREEMENT] = agreement_of(assemble(config, artefacts))
    return made


def _features(config: BgtConfig, given: Given) -> Mapping[str, bytes]:
    artefacts = given.artefacts
    if TABLE.name not in given.inputs:
        if config.features and not artefacts.has(FEATURES):
            raise ConfigurationError("prepare: expected --features with the items' public features, got none")
        return {}
    if not config.features:
        raise ConfigurationError(
            "prepare: expected no --features, as the configuration says features.dimension: 0, got some"
        )
    path, text = given.inputs[TABLE.name]
    features = parse_features(text, config.items, config.features, path)
    if artefacts.has(FEATURES) and artefacts.json(FEATURES, "public features of items") != features.tolist():
        raise ConfigurationError(f"{artefacts.path(FEATURES)}: expected the given features or none, got others")
    return {FEATURES: features_file(features)}


def assemble(config: BgtConfig, artefacts: Artefacts) -> BgtSystem:
    """Join a configuration with the prepared files: the public features of its items, and the public keys.

    Raises:
        ConfigurationError: a file is missing or damaged.
    """
    features = _zero_features(config)
    if config.features:
        rows = artefacts.json(FEATURES, "public features of items")
        features = features_of(rows, config.items, config.features, artefacts.path(FEATURES))
    keys = (read_sealing(artefacts), read_signing(artefacts)) if config.devices else (None, None)
    return BgtSystem.of(config, features, artefacts.public_dataset is not None, *keys)


def agreement_of(system: BgtSystem) -> bytes:
    """The agreement that applications ship to devices. One deployment always gives the same bytes.

    Raises:
        ConfigurationError: the deployment's slots are not made by devices.
    """
    config, sealing, signing = system.config, system.sealing, system.signing
    if sealing is None or signing is None:
        raise ConfigurationError(f"deployment {config.deployment}: expected kind edge, got kind {config.kind}")
    which, zero_out = system.guarantee().life_prices.which, system.guarantee().life_prices.zero_out
    assert zero_out is not None, "a slot may be empty here"
    agreement: dict[str, Any] = {
        "format": FORMAT,
        "system": config.system,
        "deployment": config.deployment,
        "configuration": system.digest.hex(),
        "settings": asdict(config),
        "features": system.features.tolist(),
        "sealing": {"public_key": sealing.keys[0].public_key.hex(), "vouch_key": sealing.keys[0].vouch_key.hex()},
        "signing_key": signing.keys[0].public_key.hex(),
        "promise": {
            "epsilon_micro": zero_out.epsilon_micro,
            "delta_units": str(zero_out.delta_units),
            "exchange_epsilon_micro": which.epsilon_micro,
            "exchange_delta_units": str(which.delta_units),
            "lifetime_slots": ROUNDS,
            "text": [
                system.guarantee().sentence(),
                *(f"Not protected: {one}" for one in system.guarantee().not_protected),
            ],
        },
        "slot": {
            "content_bytes": slot_bytes(config),
            "body_bytes": body_bytes(slot_bytes(config)),
            "delay_ms": round(config.settle_seconds * 1000),
        },
    }
    return (json.dumps(agreement, indent=1, ensure_ascii=False) + "\n").encode()


def inputs_of(features: Float64) -> Mapping[str, tuple[str, str]]:
    """The input of `prepare` that holds these features; empty if items have no features."""
    if not features.shape[1]:
        return {}
    lines = [",".join([str(item), *map(repr, row)]) for item, row in enumerate(features.tolist())]
    return {TABLE.name: ("features", "\n".join(lines))}


def _zero_features(config: BgtConfig) -> Float64:
    """Features of zeros, for checks that do not depend on their values."""
    return np.zeros((config.items, config.features))
