"""Draws the noise of blocks: keyed, of whole numbers, with a digest of the covered content in its address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    NoiseAddress,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
)
from hushstream.systems.pdap.algorithm.blocks import Blocks
from hushstream.systems.pdap.cells import Int64, levels_of
from hushstream.systems.pdap.configuration import PdapConfig

MECHANISM = "blocks"

BlockNoise = Callable[[int, Blocks, bytes], Int64]
"""Maps (window, blocks with exact sums, digest of all outcomes so far) to the noise of their sums, int64 (n,)."""


def block_scales(config: PdapConfig) -> tuple[tuple[int, int], ...]:
    """Scale R / eps_l of the noise on a block of each level, as (numerator, denominator)."""
    return tuple(laplace_scale(epsilon, config.release.reward_levels) for epsilon in config.level_epsilons)


def block_variances(config: PdapConfig) -> tuple[float, ...]:
    """V of each level: variance of that noise on a block's sum of rewards, with rewards scaled to [0, 1]."""
    levels = config.release.reward_levels
    return tuple(laplace_variance(*scale) / levels**2 for scale in block_scales(config))


@dataclass(frozen=True, slots=True, eq=False)
class KeyedBlockNoise:
    """Discrete Laplace noise of one counter.

    The address of a window's noise holds a keyed digest of its blocks, exact sums included, and of all outcomes ever
    taken, names included: a journal that was rolled back and continues with other outcomes draws other noise, so the
    difference of both histories does not cancel the noise. An outcome that both histories release costs epsilon in
    each.

    Attributes:
        key: of the counter's zone.
        address: of the counter; window and content are filled in for each release.
        scales: see `block_scales`.
    """

    key: Key
    address: NoiseAddress
    scales: tuple[tuple[int, int], ...]

    def __call__(self, window: int, blocks: Blocks, history: bytes) -> Int64:
        scales = ",".join(f"{top}/{bottom}" for top, bottom in self.scales)
        content = self.key.digest("pdap-blocks", history, blocks.canonical())
        parameters = {**self.address.parameters, "scales": scales}
        stream = KeyedStream(self.key, replace(self.address, window=window, parameters=parameters, content=content))
        levels, noise = levels_of(blocks.cells), np.zeros(len(blocks), dtype=np.int64)
        for level, scale in enumerate(self.scales):
            here = np.flatnonzero(levels == level)
            noise[here] = discrete_laplace(stream, *scale, len(here))
        return noise
