"""What a collaborative learner decides with: one score vector and one width for each user."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.deployment import CollaborativeSystem


@dataclass(frozen=True, slots=True, eq=False)
class SharedParameters:
    """One published version; 0 is the state before any row.

    Attributes:
        version: from 1; 0 for cold.
        parameters: float64 (N, d): x is scored by its product with the user's row.
        widths: float64 (N, d, d): the width of x is sqrt(x' C x) with the user's C.
    """

    version: int
    parameters: NDArray[np.float64]
    widths: NDArray[np.float64]

    def scores(self, node: int, features: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
        """Upper confidence bounds of (n, d) features for one user, (n,)."""
        squares = np.einsum("nd,nd->n", features @ self.widths[node], features)
        bounds: NDArray[np.float64] = features @ self.parameters[node] + alpha * np.sqrt(np.maximum(squares, 0.0))
        return bounds


def cold_parameters(system: CollaborativeSystem) -> SharedParameters:
    """What stands before the first version: no score, and the width that the relation graph alone gives."""
    estimator = system.estimator()
    factor = system.width_factor([0] * system.nodes)
    return _shared(0, estimator.parameters(), (estimator.widths() * factor**2).astype("<f4"))


def decode_parameters(system: CollaborativeSystem, fields: dict[str, Any]) -> SharedParameters:
    """The arrays of a CollaborativeModel record.

    Raises:
        HushstreamError: it is not of the deployment's users and features, or its arrays are not.
    """
    shape = (system.nodes, system.features.dimension)
    if (fields["nodes"], fields["dimension"]) != shape:
        raise HushstreamError(
            f"model: expected users and dimension {shape}, got {(fields['nodes'], fields['dimension'])}"
        )
    found = (len(fields["parameters"]), len(fields["widths"]))
    sizes = (8 * math.prod(shape), 4 * math.prod(shape) * shape[1])
    if found != sizes:
        raise HushstreamError(f"model: expected arrays of {sizes} bytes, got {found}")
    parameters = np.frombuffer(fields["parameters"], "<f8").reshape(shape)
    widths = np.frombuffer(fields["widths"], "<f4").reshape(*shape, shape[1])
    if not (np.isfinite(parameters).all() and np.isfinite(widths).all()):
        raise HushstreamError("model: expected finite parameters, got others")
    return _shared(fields["version"], parameters, widths)


def _shared(version: int, parameters: NDArray[np.float64], widths: NDArray[np.float32]) -> SharedParameters:
    return SharedParameters(version, parameters.astype(np.float64), widths.astype(np.float64))
