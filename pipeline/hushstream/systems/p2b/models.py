"""From what a model track has gathered to the model that it publishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import delta_to_bytes
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.server.accumulate import CrowdTotals
from hushstream.systems.p2b.server.errors import AggregationError
from hushstream.systems.p2b.server.estimate import ModelSums, model_from_sums, onehot_from_sums
from hushstream.systems.p2b.server.exact import ExactSums


@dataclass(frozen=True, slots=True)
class ModelFields:
    """What a published model says beside its chain: arrays, and the price of the slots under it."""

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]
    features: str
    observations: float
    epsilon_micro: int
    delta_units: bytes
    private_as_stated: bool


class PrivateTotals:
    """The running totals of all crowds of a deployment (post-processing of what was released)."""

    def __init__(self, system: P2BSystem) -> None:
        """Start with none."""
        self._system = system
        self._totals = CrowdTotals(system.codes, system.config.arms)
        self._as_stated = True

    def add(self, crowd: Mapping[str, Any]) -> bool:
        """Add a crowd record; False (and nothing changes) when it is not of this deployment's domain."""
        config = self._system.config
        if (crowd["codes"], crowd["arms"], crowd["levels"]) != (
            self._system.codes,
            config.arms,
            config.release.levels,
        ):
            return False
        shape = (self._system.codes, config.arms)
        try:
            ones, zeros = (
                np.frombuffer(crowd[name], "<i8").astype(np.int64).reshape(shape) for name in ("ones", "zeros")
            )
            self._totals.add(ones, zeros, crowd["variance"], crowd["slots"])
        except (ValueError, AggregationError):
            return False
        self._as_stated = self._as_stated and crowd["private_as_stated"]
        return True

    def model(self) -> ModelFields:
        """The model that follows from the totals."""
        config = self._system.config
        totals = self._totals
        if config.encoder.features == "onehot":
            sums = onehot_from_sums(
                totals.ones, totals.zeros, config.release.levels, totals.variance, config.learner.ridge
            )
        else:
            centroids = self._system.encoder.centroids
            sums = model_from_sums(
                totals.ones,
                totals.zeros,
                config.release.levels,
                totals.variance,
                centroids,
                config.learner.ridge,
            )
        price = self._system.guarantee()
        return ModelFields(
            sums.gram,
            sums.moment,
            config.encoder.features,
            sums.observations,
            price.epsilon_micro,
            delta_to_bytes(price.delta_units),
            price.private_as_stated and self._as_stated,
        )

    def dump(self) -> bytes:
        """Packed, for a snapshot."""
        return bytes([self._as_stated]) + self._totals.dump()

    def load(self, dumped: bytes) -> None:
        """Back from packed."""
        self._totals = CrowdTotals.load(dumped[1:])
        self._as_stated = dumped[:1] == b"\x01"


class RawTotals:
    """Sums of raw interactions, for the non-private arm of an experiment on public data."""

    def __init__(self, system: P2BSystem) -> None:
        """Start with none."""
        self._system = system
        self._sums = ExactSums(system.config.arms, system.model_dimension)

    def add(self, record: Mapping[str, Any]) -> bool:
        """Add an interactions record; False (and nothing changes) when its columns do not fit."""
        try:
            contexts = np.frombuffer(record["contexts"], "<f4").reshape(-1, self._system.config.context.dimension)
            arms = np.frombuffer(record["arms"], "<i4").astype(np.int64)
            rewards = np.frombuffer(record["rewards"], "<f8")
            if self._system.config.encoder.features == "onehot":
                contexts = np.eye(self._system.codes, dtype=np.float32)[self._system.encoder.encode(contexts)]
            self._sums.add(contexts, arms, rewards)
        except (ValueError, AggregationError):
            return False
        return True

    def model(self) -> ModelFields:
        """The model that follows from the sums."""
        sums: ModelSums = self._sums.model(self._system.config.learner.ridge)
        gram, features = sums.gram, "raw"
        if self._system.config.encoder.features == "onehot":
            gram, features = np.ascontiguousarray(np.diagonal(gram, axis1=1, axis2=2)), "onehot"
        return ModelFields(gram, sums.moment, features, sums.observations, 0, b"", False)

    def dump(self) -> bytes:
        """Packed, for a snapshot."""
        return self._sums.dump()

    def load(self, dumped: bytes) -> None:
        """Back from packed."""
        self._sums = ExactSums.load(dumped)
