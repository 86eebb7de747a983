"""The prepared file of a deployment: ``features.json`` with public features of its items, if there are any."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hushstream.engine.declare.artefacts import Artefacts, Given, PreparedFrom
from hushstream.engine.values import ConfigurationError
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.features import features_file, features_of, parse_features
from hushstream.systems.bgt.slots import Float64

FEATURES = "features.json"
TABLE = PreparedFrom("features", "public features of the items: item,number,...,number a line")


def prepare(config: BgtConfig, given: Given) -> Mapping[str, bytes]:
    """Copy the public features of items.

    Raises:
        ConfigurationError: there are none although the configuration declares some, or the reverse; other features were
            prepared before; or a model of this size would not fit into a record.
    """
    BgtSystem.of(config, _nothing(config))
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
    """Join a configuration with the public features of its items.

    Raises:
        ConfigurationError: they are missing or damaged.
    """
    features = _nothing(config)
    if config.features:
        rows = artefacts.json(FEATURES, "public features of items")
        features = features_of(rows, config.items, config.features, artefacts.path(FEATURES))
    return BgtSystem.of(config, features, artefacts.public_dataset is not None)


def inputs_of(features: Float64) -> Mapping[str, tuple[str, str]]:
    """Features in the form of the file for preparation; none if there are none."""
    if not features.shape[1]:
        return {}
    lines = [",".join([str(item), *map(repr, row)]) for item, row in enumerate(features.tolist())]
    return {TABLE.name: ("features", "\n".join(lines))}


def _nothing(config: BgtConfig) -> Float64:
    """Features of zeros, for checks that do not depend on their values."""
    return np.zeros((config.items, config.features))
