"""Where a counter's noise comes from: one keyed stream for a small block of neighbouring nodes of a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.calibration import NodeNoise
from hushstream.counting.errors import BadPlan
from hushstream.privacy.encoding import encode
from hushstream.privacy.keys import Key
from hushstream.privacy.noise import KeyedStream, NoiseAddress, Parameter

PURPOSE = "counter-node"


class NodeSource(Protocol):
    """Gives the noise of whole blocks of nodes: the same block, the same integers, always."""

    def draw(self, blocks: Sequence[tuple[int, ...]], nodes: int) -> NDArray[np.int64]:
        """Noise of the ``nodes`` nodes of each block, int64 (blocks, nodes, dimension)."""


class CellSource(Protocol):
    """A `NodeSource` for each of many cells."""

    def draw_cells(self, cells: Sequence[int], blocks: Sequence[tuple[int, ...]], nodes: int) -> NDArray[np.int64]:
        """Noise of the ``nodes`` nodes of each block of the cell beside it, int64 (blocks, nodes, dimension)."""


class _NodeStream(KeyedStream):
    """`KeyedStream` of an address that is encoded already."""

    __slots__ = ()

    def __init__(self, key: Key, encoded: bytes) -> None:
        self._key = key
        self._address = encoded
        self._draws = 0
        self.reproducible = key.reproducible


class KeyedNodes:
    """The source of a running counter: the block is a part of the noise address.

    Blocks differ in node and cell alone, which come late in the encoded address: what is before is encoded once.
    """

    __slots__ = ("_address", "_dimension", "_head", "_key", "_noise")

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
        whole, tail = self._address.encode(), self._tail(self._address.cell, ())
        self._head = whole.removesuffix(tail)
        if self._address.node or self._head == whole:
            raise BadPlan("counter: expected an address without a node, got one that names a node")

    @property
    def identity(self) -> bytes:
        """The encoded address without a node: names the counter among all others."""
        return self._address.encode()

    def draw(self, blocks: Sequence[tuple[int, ...]], nodes: int) -> NDArray[np.int64]:
        """See `NodeSource`."""
        return self.draw_cells([self._address.cell] * len(blocks), blocks, nodes)

    def draw_cells(
        self, cells: Sequence[int | None], blocks: Sequence[tuple[int, ...]], nodes: int
    ) -> NDArray[np.int64]:
        """See `CellSource`; a cell of None is that of a counter that has none."""
        streams = [
            _NodeStream(self._key, self._head + self._tail(cell, block))
            for cell, block in zip(cells, blocks, strict=True)
        ]
        drawn = self._noise.draw(streams, nodes * self._dimension)
        return drawn.reshape(len(streams), nodes, self._dimension)

    def _tail(self, cell: int | None, node: tuple[int, ...]) -> bytes:
        return encode(node, cell, self._address.coordinate, self._address.partition)
