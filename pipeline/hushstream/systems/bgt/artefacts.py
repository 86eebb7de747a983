"""The prepared files of a deployment.

``features.json``: public features of its items, if there are any. If devices make slots, ``sealing.json`` and
``signing.json``: the public keys of the collector and of the aggregator; and ``agreement.json``, which applications
ship.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from hushstream.engine.declare.artefacts import Artefacts, Given, PreparedFrom
from hushstream.engine.devices.agreed import FORMAT
from hushstream.engine.devices.published import AGREEMENT, first_keys, read_sealing, read_signing
from hushstream.engine.devices.travelling import body_bytes
from hushstream.engine.values import ConfigurationError
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.features import features_file, features_of, parse_features
from hushstream.systems.bgt.rounds import ROUNDS
from hushstream.systems.bgt.slots import Float64, slot_bytes

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
        made |= first_keys(given, signs=True)
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
    file = features_file(parse_features(text, config.items, config.features, path))
    if artefacts.has(FEATURES) and artefacts.files[FEATURES] != file:
        raise ConfigurationError(f"{artefacts.path(FEATURES)}: expected the given features or none, got others")
    return {FEATURES: file}


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
    which, took_part = system.guarantee().life_prices.which, system.guarantee().life_prices.took_part
    assert took_part is not None, "whether somebody took part is not public here"
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
            "epsilon_micro": took_part.epsilon_micro,
            "delta_units": str(took_part.delta_units),
            "exchange_epsilon_micro": which.epsilon_micro,
            "exchange_delta_units": str(which.delta_units),
            "lifetime_slots": ROUNDS,
            "text": [
                system.promises.sentence(),
                *(f"Not protected: {one}" for one in system.promises.releases.not_protected),
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
