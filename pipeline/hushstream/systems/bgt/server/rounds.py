"""The server: makes a model and the next round from each release."""

from __future__ import annotations

import numpy as np

from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.errors import BadRelease
from hushstream.systems.bgt.rounds import ROUNDS, Model, Release, Round, first_round
from hushstream.systems.bgt.server.estimate import (
    Biases,
    ItemSums,
    Spectrum,
    biases_of,
    factors_of,
    item_sums,
    joined,
    spectrum_of,
    top_items,
)
from hushstream.systems.bgt.slots import Float64


class Server:
    """Takes releases in order; its state follows from them alone.

    Attributes:
        asked: the open round; None after the last.
        model: the best model from the releases so far, published after each.
        spectrum: of the release of kind B, once there is one.
    """

    __slots__ = ("_config", "_features", "_found", "_sums", "asked", "model", "spectrum")

    def __init__(self, config: BgtConfig, features: Float64 | None = None) -> None:
        """Begin before the first release.

        Args:
            config: of the deployment.
            features: (I, f) public features of items.

        Raises:
            BadRelease: features have another shape, or are not finite.
        """
        features = np.zeros((config.items, 0)) if features is None else features
        if features.shape != (config.items, config.features) or not np.isfinite(features).all():
            expected = config.items, config.features
            raise BadRelease(f"features: expected finite numbers of shape {expected}, got {features.shape}")
        self._config, self._features = config, features
        self.asked: Round | None = first_round(config)
        self.model = self.asked.model
        self.spectrum: Spectrum | None = None
        self._found: Biases | None = None
        self._sums: ItemSums | None = None

    @property
    def counts(self) -> Float64:
        """(I,) noised numbers of ratings of items from slots of kind A; zeros before the first release.

        A rating counts 1, or less if its slot was scaled down.
        """
        return np.zeros(self._config.items) if self._found is None else self._found.counts

    def take(self, release: Release) -> None:
        """Learn from a release, and open the next round.

        Raises:
            BadRelease: it is not of the open round, or not of its kind.
        """
        asked = self.asked
        if asked is None or (release.number, release.kind) != (asked.number, asked.kind):
            expected = "none after the last" if asked is None else f"round {asked.number} ({asked.kind})"
            raise BadRelease(f"release: expected {expected}, got round {release.number} ({release.kind})")
        after = {"items": self._after_items, "pairs": self._after_pairs, "factors": self._after_factors}
        after[release.kind](asked, release)

    def stop(self) -> None:
        """End early, for instance if the budget refuses the next round.

        The model keeps its biases and loses its factors: without kind C only the most rated items have factors.
        """
        self.asked = None
        self.model = Model(self.model.biases, np.zeros((self._config.items, 0)))

    def _after_items(self, asked: Round, release: Release) -> None:
        sums = item_sums(release.sums, release.number, self._config)
        self._sums = sums if self._sums is None else joined(self._sums, sums)
        self._found = biases_of(self._sums, self._features, self._config)
        self.model = Model(self._found.biases, np.zeros((self._config.items, 0)))
        if asked.number + 1 == ROUNDS:
            self.asked = None
            return
        top, gains = top_items(self._found.counts, self._config)
        self.asked = Round(1, "pairs", self.model, top, gains)

    def _after_pairs(self, asked: Round, release: Release) -> None:
        assert self._found is not None
        counts = self._found.counts
        found = spectrum_of(release.sums, release.slots, 1, asked.top, asked.gains, counts, self._config)
        self.spectrum = found
        if found.factors.shape[1]:
            # Until kind C is released, only the top items have factors.
            self.model = Model(self._found.biases, found.factors)
            self.asked = Round(2, "factors", self.model)
        else:
            self.asked = Round(2, "items", self.model)

    def _after_factors(self, asked: Round, release: Release) -> None:
        assert self._found is not None
        factors = factors_of(release.sums, self._found.counts, release.number, self._config)
        self.model, self.asked = Model(self._found.biases, factors), None
