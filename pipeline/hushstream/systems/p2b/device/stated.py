"""The signed statement of a model of declared features, and the arrays of its content."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.devices import envelope
from hushstream.engine.devices.errors import BadModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(envelope.Statement):
    """What the aggregator states of one version.

    Attributes:
        layout: digest of the declared features and the budgets, in hexadecimal.
        arms, cells: K and P.
        reward_variance: the variance of a reward around its mean.
        catalogue, items_sha256: always 0 and None, because devices know items by numbers.
    """

    layout: str
    arms: int
    cells: int
    reward_variance: float
    catalogue: int = 0
    items_sha256: str | None = None


def content_of(means: bytes, variances: bytes) -> tuple[bytes, str]:
    """The content of a model's arrays, as its record has them, and its digest."""
    content = means + variances
    return content, hashlib.sha256(content).hexdigest()


def arrays_of(statement: Statement, content: bytes) -> tuple[NDArray[np.float64], ...]:
    """Means and variances (K, P), and the variance of a reward (1,), as `FeaturePolicy.adopt` takes them.

    Raises:
        BadModel: the content is not the one that the statement describes, or a number is not valid in a model.
    """
    shape = (statement.arms, statement.cells)
    wanted = 2 * 8 * math.prod(shape)
    statement.require_content(content, wanted)
    means, variances = np.frombuffer(content, "<f8").reshape(2, *shape).astype(np.float64)
    g = statement.reward_variance
    good = np.isfinite(means).all() and np.isfinite(variances).all() and (variances > 0).all()
    if not (good and math.isfinite(g) and g > 0):
        raise BadModel("model: expected finite means and positive variances, got others")
    return means, variances, np.array([g])
