"""What a deployment sums, codes or declared features, as far as it follows from the configuration alone.

This is needed before anything is fitted: for promises and prices, for the check of a configuration, and to prepare a
deployment. What the roles of a running deployment need is in `hushstream.systems.p2b.guarantee.form`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, SupportsFloat

from hushstream.engine.release_parts import MOST_BYTES, WHOLE_BYTES, parts_needed
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import count_text
from hushstream.privacy.mechanisms.amplification import noise_epsilon
from hushstream.privacy.mechanisms.guarantee import (
    Guarantee,
    linear_sums_guarantee,
    paper_guarantee,
    slot_sums_guarantee,
    tuples_guarantee,
)
from hushstream.privacy.mechanisms.tuples import curve_epsilon, smallest_threshold
from hushstream.privacy.promises.contents import Form
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.errors import ContributionError
from hushstream.systems.p2b.contribution.feature_layout import UNITS
from hushstream.systems.p2b.contribution.feature_slots import slot_bytes
from hushstream.systems.p2b.contribution.grid import grid_size

PAPER_THRESHOLD = 10
"""The shuffler's threshold in the paper's public code."""


class Summed(Protocol):
    """What is summed.

    Attributes:
        fits_encoder: whether something is fitted for a deployment before it runs.
        compares: whether a replay of a public dataset also has a track of exact interactions.
        in_a_slot: what a slot holds, in words.
    """

    fits_encoder: bool
    compares: bool
    in_a_slot: str

    @property
    def mechanism(self) -> str:
        """The name of the mechanism that makes the sums of a window, in journals and prices."""

    @property
    def crowds(self) -> tuple[str, Form]:
        """What leaves the shuffler, in words, and whether it is noised, sampled or clear."""

    @property
    def sums(self) -> tuple[int, int]:
        """How many sums a window has, and how far one slot moves them together in L1."""

    @property
    def parts(self) -> int:
        """The number of parts in which sums and models leave; 1 if each fits into a record."""

    @property
    def resolved(self) -> Mapping[str, str | float]:
        """Values that follow from the configuration and are printed with it."""

    def guarantee(self, slots: int, tree_levels: int) -> Guarantee:
        """The guarantee for ``slots`` slots of one user.

        Args:
            slots: the number of slots in the user's life.
            tree_levels: the number of nodes of the counter over windows that contain one window; 1 without a counter.
        """

    def check(self) -> None:
        """Refuse a configuration whose records could never be published, before anything runs.

        Raises:
            ConfigurationError: a record would be too large, or there are more codes than contexts.
        """


@dataclass(frozen=True)
class SummedCodes:
    """Sums by code and arm; or tuples of code, arm and reward above a threshold."""

    config: P2BConfig
    fits_encoder = True
    compares = True
    parts = 1
    in_a_slot = "code, arm and reward of one interaction, or null"

    @property
    def mechanism(self) -> str:
        return self.config.release.mode

    @property
    def crowds(self) -> tuple[str, Form]:
        return _CROWDS_OF_CODES[self.config.release.mode]

    @property
    def sums(self) -> tuple[int, int]:
        config = self.config
        return 2 * resolve_codes(config) * config.arms, config.release.levels

    @property
    def resolved(self) -> Mapping[str, str | float]:
        return {"codes": resolve_codes(self.config)}

    def guarantee(self, slots: int, tree_levels: int) -> Guarantee:
        config, release = self.config, self.config.release
        if release.mode == "slot-sums":
            return slot_sums_guarantee(
                epsilon=noise_epsilon(release.slot_epsilon, release.sampling),
                levels=release.levels,
                sampling=release.sampling,
                lifetime_slots=slots,
                deployment=config.kind,
                tree_levels=tree_levels,
            )
        threshold = resolve_threshold(config)
        make = tuples_guarantee if release.mode == "tuples" else paper_guarantee
        return make(threshold=threshold, sampling=release.sampling, lifetime_slots=slots, deployment=config.kind)

    def check(self) -> None:
        codes, context = resolve_codes(self.config), self.config.context
        most = grid_size(context.dimension, context.digits)
        if codes > most:
            raise ConfigurationError(f"encoder.codes: expected at most the {most} contexts of the grid, got {codes}")
        require_code_sizes(self.config, codes)


@dataclass(frozen=True)
class SummedFeatures:
    """Sums by item and by cell of every declared feature."""

    config: P2BConfig
    fits_encoder = False
    compares = False
    in_a_slot = "declared features, arm and reward of one interaction, or null"
    mechanism = "linear-sums"
    crowds = ("sums of rewards by arm and cell of each declared feature over a window", Form.NOISED)

    @property
    def sums(self) -> tuple[int, int]:
        return 2 * self._cells * self.config.arms, self.config.release.levels * UNITS

    @property
    def resolved(self) -> Mapping[str, str | float]:
        return {"cells": self._cells, "slot_bytes": slot_bytes(self._places)}

    @property
    def parts(self) -> int:
        """See `Summed.parts`."""
        return parts_needed(self._item_bytes * self.config.arms)

    @property
    def _item_bytes(self) -> int:
        """The bytes of an item in sums and models; if items have names, with the version at which the item entered."""
        return 16 * self._cells + (4 if self.config.named_items else 0)

    @property
    def _cells(self) -> int:
        """The number of cells of an item: the constant's cell, and those of every feature."""
        return self.config.context.schema.cells + 1

    @property
    def _places(self) -> int:
        return self.config.context.schema.places + 1

    def guarantee(self, slots: int, tree_levels: int) -> Guarantee:
        config, release = self.config, self.config.release
        return linear_sums_guarantee(
            epsilon=noise_epsilon(release.slot_epsilon, release.sampling),
            units=UNITS,
            places=self._places,
            levels=release.levels,
            sampling=release.sampling,
            lifetime_slots=slots,
            deployment=config.kind,
            tree_levels=tree_levels,
        )

    def check(self) -> None:
        cells, arms, each = self._cells, self.config.arms, self._item_bytes
        if self.config.devices and self.parts > 1:
            raise ConfigurationError(
                f"configuration: expected a model of one record for kind edge (16 * {arms} items * {cells} cells, at "
                f"most {WHOLE_BYTES} bytes), got {each * arms} bytes: devices fetch it whole"
            )
        _require_sizes(
            {f"sums and models (16 * {arms} items * {cells} cells)": each * arms},
            MOST_BYTES,
            f"with these features there is room for {count_text(MOST_BYTES // each, 'item')}",
        )


def summed_of(config: P2BConfig) -> Summed:
    """What a deployment of a configuration sums."""
    return _SUMMED[config.release.form](config)


def resolve_codes(config: P2BConfig) -> int:
    """How many codes the encoder has: as configured, or chosen from the configuration alone."""
    if config.encoder.codes != "auto":
        return config.encoder.codes
    release = config.release
    return auto_codes(
        arms=config.arms,
        expected_slots=config.expected_slots,
        epsilon=release.slot_epsilon,
        levels=release.levels,
        dimension=config.context.dimension,
    )


def resolve_threshold(config: P2BConfig) -> int:
    """The threshold as configured, the paper's, or the smallest one that reaches the target delta."""
    release = config.release
    if release.threshold != "auto":
        return release.threshold
    if release.mode == "paper":
        return PAPER_THRESHOLD
    return smallest_threshold(release.sampling, curve_epsilon(release.sampling), release.target_delta)


def require_code_sizes(config: P2BConfig, codes: int) -> None:
    """Refuse a number of codes with which crowds or models do not fit into one record.

    Raises:
        ConfigurationError: a record would be too large.
    """
    crowd = 2 * 8 * codes * config.arms
    dimension = config.context.dimension
    square = codes if config.encoder.features == "onehot" else dimension * dimension
    model = 8 * config.arms * (square + max(codes, dimension))
    _require_sizes(
        {"a crowd (16 * codes * arms)": crowd, "a model (8 * arms * d * (d + 1))": model},
        WHOLE_BYTES,
        "use fewer arms, codes or dimensions",
    )


def _require_sizes(sizes: Mapping[str, int], most: int, advice: str) -> None:
    for name, size in sizes.items():
        if size > most:
            raise ConfigurationError(f"configuration: expected {name} of at most {most} bytes, got {size}; {advice}")


_SUMMED: Mapping[str, type[SummedCodes | SummedFeatures]] = {"codes": SummedCodes, "features": SummedFeatures}

_CROWDS_OF_CODES = {
    "slot-sums": ("sums of rewards by code and arm over a window", Form.NOISED),
    "tuples": (
        "how many kept slots of a window held the same code, arm and reward, where they reach the threshold",
        Form.SAMPLED,
    ),
    "paper": (
        "the kept slots of a window as they are, where enough share the code: what is unique under it is shown",
        Form.CLEAR,
    ),
}


_NOISE_AGAINST_MERGING = 5.0
_CODES_A_DIMENSION = 4


def auto_codes(
    arms: int,
    expected_slots: int,
    epsilon: SupportsFloat,
    levels: int = 1,
    dimension: int = 10,
    windows: int = 1,
) -> int:
    """Choose k, a power of two, for slot sums.

    Two errors depend on k in opposite ways. *Noise*: an average cell holds ``n = N / (k K)`` reports, whose clicks
    have variance at most ``n/4``, and gets noise of variance ``v`` (in rewards). So noise multiplies the variance of
    what is learned by ``1 + 4 v / n = 1 + k / s`` with ``s = N / (4 v K)``, which follows from the configuration
    alone. *Merging*: the server cannot distinguish contexts with the same code; this loss falls about as ``1/k``
    until the centroids span the space. The sum ``c/k + k/s`` is smallest at ``k = sqrt(c s)``, rounded to the nearest
    power of two in the logarithm. ``c = 5`` was fitted by simulation. A model with d numbers for each arm gains
    nothing from more than a few codes for each dimension, so k is at most ``4 d`` (k-means resolves
    ``k^(-2/(d-1))``: with twice the codes, distances are 14 % smaller at d = 10).

    Checked by simulation (d=10, K=10, T=10; reward of the private warm start against that of the best power
    of two): 500 slots at eps 1 give 8 (the best), 1,400 at eps 1 give 8 (2 % below 16), 14,000 at ln 2 give
    16 (the best), 20,000 at ln 2 give 32 (equal to 16), 70,000 at ln 2 in the linear world give 32 (2 %
    below 16).

    Args:
        arms: K.
        expected_slots: N, reports expected in all windows together.
        epsilon: the epsilon of one window's release.
        levels: M.
        dimension: d, at least 2.
        windows: number of releases whose noise adds up.

    Returns:
        k, from 2 to ``4 d``.

    Raises:
        ContributionError: an argument out of range.
    """
    budget = float(epsilon)
    if min(arms, expected_slots, levels, windows) < 1 or dimension < 2 or not 0.0 < budget < math.inf:
        raise ContributionError(
            "expected positive arms, slots, levels, windows and epsilon, and at least 2 dimensions, got "
            f"{arms}, {expected_slots}, {levels}, {windows}, {budget} and {dimension}"
        )
    variance = windows * _noise_variance(budget, levels)
    signal = expected_slots / (4.0 * variance * arms)
    wanted = math.sqrt(_NOISE_AGAINST_MERGING * signal)
    most = float(_CODES_A_DIMENSION * dimension)
    return 1 << min(round(math.log2(min(max(wanted, 2.0), most))), int(math.log2(most)))


def _noise_variance(epsilon: float, levels: int) -> float:
    """Variance, in rewards, of discrete Laplace noise of scale M/eps on a sum in units of 1/M.

    With ``a = eps/M`` it is ``2 e^-a / (1 - e^-a)^2 = 1 / (2 sinh(a/2)^2)`` in units.
    """
    half = epsilon / levels / 2.0
    if half > 300.0:
        return math.ulp(0.0)
    return max(0.5 / (math.sinh(half) * levels) ** 2, math.ulp(0.0))
