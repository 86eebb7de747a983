"""The source of a counter's noise: a keyed stream for one node over the history of leaves, or for a block of nodes.

If noise is drawn after all its leaves have come, or for one leaf, its address has the node's place and the *history*, a
keyed running digest of all leaves. Counters that need a node before all its leaves have come (`counting.tree`) can only
use its place, and draw small blocks of neighbouring nodes ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.calibration import NodeNoise
from hushstream.counting.errors import BadPlan
from hushstream.privacy.keys import DIGEST_BYTES, Key, encode
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, Parameter

PURPOSE = "counter-node"
HISTORY_BYTES = DIGEST_BYTES
NO_HISTORY = bytes(HISTORY_BYTES)
"""The history before the first leaf."""


class NodeSource(Protocol):
    """Gives the noise of nodes. The same place and history always give the same integers."""

    def draw(self, blocks: Sequence[tuple[int, ...]], nodes: int) -> NDArray[np.int64]:
        """Noise of the ``nodes`` nodes of each block, independent of leaves, int64 (blocks, nodes, dimension)."""

    def draw_over(self, places: Sequence[tuple[int, ...]], histories: Sequence[bytes]) -> NDArray[np.int64]:
        """Noise of single nodes, each over the history beside it, int64 (places, dimension)."""

    def streams(self, places: Sequence[tuple[int, ...]], histories: Sequence[bytes]) -> Sequence[KeyedStream]:
        """The streams of `draw_over`, for a caller that draws for many counters in one pass."""

    def histories(self, before: bytes, leaves: NDArray[np.int64], origin: bytes) -> list[bytes]:
        """The history after each leaf; ``origin`` names their source, so that equal leaves of two sources differ."""


class CellSource(Protocol):
    """A `NodeSource` of blocks for each of many cells."""

    def draw_cells(self, cells: Sequence[int], blocks: Sequence[tuple[int, ...]], nodes: int) -> NDArray[np.int64]:
        """Noise of the ``nodes`` nodes of each block of the cell beside it, int64 (blocks, nodes, dimension)."""


class _NodeStream(KeyedStream):
    """`KeyedStream` of an address that is already encoded."""

    __slots__ = ()

    def __init__(self, key: Key, encoded: bytes) -> None:
        self._key = key
        self._address = encoded
        self._draws = 0
        self.reproducible = key.reproducible


class KeyedNodes:
    """The source of a running counter; the block is part of the noise address.

    Draws differ in node, cell and content alone, which are at the end of the encoded address, so the beginning is
    encoded once.
    """

    __slots__ = ("_address", "_cell", "_dimension", "_head", "_key", "_noise")

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
        self._cell = address.cell
        self._noise = noise
        self._dimension = dimension
        whole, tail = self._address.encode(), self._tail(self._cell, (), b"")
        self._head = whole.removesuffix(tail)
        if self._address.node or self._address.content:
            raise BadPlan("counter: expected an address without a node or content, got one that names some")

    @property
    def identity(self) -> bytes:
        """The encoded address without a node: names the counter among all others."""
        return self._head + self._tail(self._cell, (), b"")

    def of_cell(self, cell: int) -> KeyedNodes:
        """The source of a counter whose address differs from this one in the cell alone."""
        other = copy(self)
        other._cell = cell
        return other

    def draw(self, blocks: Sequence[tuple[int, ...]], nodes: int) -> NDArray[np.int64]:
        return self.draw_cells([self._cell] * len(blocks), blocks, nodes)

    def draw_cells(
        self, cells: Sequence[int | None], blocks: Sequence[tuple[int, ...]], nodes: int
    ) -> NDArray[np.int64]:
        """See `CellSource`; a cell of None means a counter without a cell."""
        streams = [self._stream(cell, block, b"") for cell, block in zip(cells, blocks, strict=True)]
        drawn = self._noise.draw(streams, nodes * self._dimension)
        return drawn.reshape(len(streams), nodes, self._dimension)

    def draw_over(self, places: Sequence[tuple[int, ...]], histories: Sequence[bytes]) -> NDArray[np.int64]:
        return self._noise.draw(self.streams(places, histories), self._dimension)

    def streams(self, places: Sequence[tuple[int, ...]], histories: Sequence[bytes]) -> list[_NodeStream]:
        return [self._stream(self._cell, place, history) for place, history in zip(places, histories, strict=True)]

    def histories(self, before: bytes, leaves: NDArray[np.int64], origin: bytes) -> list[bytes]:
        found = []
        for leaf in leaves.astype("<i8", copy=False):
            before = self._key.digest("leaf", before, origin, leaf.tobytes())
            found.append(before)
        return found

    def _stream(self, cell: int | None, node: tuple[int, ...], content: bytes) -> _NodeStream:
        return _NodeStream(self._key, self._head + self._tail(cell, node, content))

    def _tail(self, cell: int | None, node: tuple[int, ...], content: bytes) -> bytes:
        place = _encoded_cell(cell, self._address.coordinate, self._address.partition)
        return _encoded_node(node) + place + encode(content)


@lru_cache(maxsize=1024)
def _encoded_node(node: tuple[int, ...]) -> bytes:
    """Encode a node, with a cache: counters of many users need the same nodes at the same time."""
    return encode(node)


@lru_cache(maxsize=4096)
def _encoded_cell(cell: int | None, coordinate: int | None, partition: int) -> bytes:
    return encode(cell, coordinate, partition)
