"""Decodes published models of P2B."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.learner.model_parts import CONTENT
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.guarantee.deployment import P2BSystem


class PublishedModel(NamedTuple):
    """One version, and its arrays as `SharedPolicy.adopt` takes them.

    Of codes: gram (K, D, D), or (K, D) for one-hot features, and moment (K, D), float64. Of declared features: means
    and variances (K, P), and the variance of a reward (1,), float64; where items have names also their entries (K,).
    """

    version: int
    arrays: tuple[NDArray[np.float64], ...]


def decode_model(system: P2BSystem, fields: dict[str, Any]) -> PublishedModel:
    """The arrays of the record of a model.

    Raises:
        HushstreamError: the record or its arrays do not have the deployment's arms and dimension.
    """
    return _DECODE[system.config.release.form](system, fields)


def _of_features(system: P2BSystem, fields: dict[str, Any]) -> PublishedModel:
    form = system.linear
    found = (fields["arms"], fields["cells"])
    if found != form.shape or fields["layout_digest"] != form.layout_digest:
        raise HushstreamError(f"model: expected arms and cells {form.shape} of this deployment's layout, got {found}")
    size = 8 * math.prod(form.shape)
    found_arrays = _arrays(fields, size) if form.parts > 1 else (fields["means"], fields["variances"])
    if tuple(map(len, found_arrays)) != (size, size):
        raise HushstreamError(f"model: expected means and variances of {size} bytes, got others")
    means, variances = (np.frombuffer(one, "<f8").reshape(form.shape).astype(np.float64) for one in found_arrays)
    arrays = (means, variances, np.array([fields["reward_variance"]]))
    if not system.config.named_items:
        return PublishedModel(fields["version"], arrays)
    if len(fields["entries"]) != 4 * form.shape[0]:
        raise HushstreamError(f"model: expected entries of {4 * form.shape[0]} bytes, got others")
    return PublishedModel(fields["version"], (*arrays, np.frombuffer(fields["entries"], "<i4").astype(np.float64)))


def _arrays(fields: Mapping[str, Any], size: int) -> tuple[bytes, bytes]:
    """Means and variances of a model whose arrays came in parts."""
    content = fields[CONTENT]
    return content[:size], content[size:]


def _of_codes(system: P2BSystem, fields: dict[str, Any]) -> PublishedModel:
    """The arrays of a Model record.

    Raises:
        HushstreamError: the record or its arrays do not have the deployment's arms and dimension.
    """
    arms, dimension = system.config.arms, system.model_dimension
    onehot = system.config.encoder.features == "onehot"
    shape = (arms, dimension) if onehot else (arms, dimension, dimension)
    found = (fields["arms"], fields["dimension"], fields["features"] == "onehot")
    if found != (arms, dimension, onehot):
        raise HushstreamError(f"model: expected arms, dimension, one-hot {(arms, dimension, onehot)}, got {found}")
    gram, moment = fields["gram"], fields["moment"]
    sizes = (8 * math.prod(shape), 8 * arms * dimension)
    if (len(gram), len(moment)) != sizes:
        raise HushstreamError(f"model: expected sums of {sizes} bytes, got {(len(gram), len(moment))}")
    return PublishedModel(
        fields["version"],
        (
            np.frombuffer(gram, "<f8").reshape(shape).astype(np.float64),
            np.frombuffer(moment, "<f8").reshape(arms, dimension).astype(np.float64),
        ),
    )


_DECODE = {"codes": _of_codes, "features": _of_features}
