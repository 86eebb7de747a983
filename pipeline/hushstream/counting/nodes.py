"""Where a counter's noise comes from: one keyed stream for a small block of neighbouring nodes of a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.calibration import NodeNoise
from hushstream.privacy.keys import Key
from hushstream.privacy.noise import KeyedStream, NoiseAddress, Parameter

PURPOSE = "counter-node"


class NodeSource(Protocol):
    """Gives the noise of whole blocks of nodes: the same block, the same integers, always."""

    def draw(self, blocks: Sequence[tuple[int, ...]], nodes: int) -> NDArray[np.int64]:
        """Noise of the ``nodes`` nodes of each block, int64 (blocks, nodes, dimension)."""


class KeyedNodes:
    """The source of a running counter: the block is a part of the noise address."""

    __slots__ = ("_address", "_dimension", "_key", "_noise")

    def __init__(
        self,
        key: Key,
        address: NoiseAddress,
        mechanism: str,
        parameters: dict[str, Parameter],
        noise: NodeNoise,
        dimension: int,
    ) -> None:
        """Bind the key and everything in the address but the node.

        Args:
            key: the counter zone's key.
            address: deployment, nonce, system, configuration, epoch, partition and cell of the counter.
            mechanism: the counter's name; it takes the place of the address's.
            parameters: everything that shapes the counter and its noise; added to those of the address.
            noise: law of one coordinate of one node.
            dimension: coordinates of a node.
        """
        self._key = key
        self._address = replace(
            address, purpose=PURPOSE, mechanism=mechanism, parameters={**address.parameters, **parameters}
        )
        self._noise = noise
        self._dimension = dimension

    @property
    def identity(self) -> bytes:
        """The encoded address without a node: names the counter among all others."""
        return self._address.encode()

    def draw(self, blocks: Sequence[tuple[int, ...]], nodes: int) -> NDArray[np.int64]:
        """See `NodeSource`."""
        streams = [KeyedStream(self._key, replace(self._address, node=block)) for block in blocks]
        drawn = self._noise.draw(streams, nodes * self._dimension)
        return drawn.reshape(len(streams), nodes, self._dimension)
