"""Rules of requests to a PDOL deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.requests import BadContext, RequestRefused
from hushstream.features.errors import FeatureError
from hushstream.features.schema import FeatureSchema


class RecordRules(NamedTuple):
    """Rules of records, besides the bounds of `hushstream.systems.pdol.algorithm.edge.quantise`.

    Attributes:
        nodes: how many there are.
        dimension: coordinates of a record.
        features: the declared features, of which a record gives the values by name; None if records are coordinates.
    """

    nodes: int
    dimension: int
    features: FeatureSchema | None = None

    def coordinates_of(self, values: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The coordinates that are not 0 of a record's values, by the names of features; of L2 norm 1.

        The first coordinate is constant, and the cells of all features follow.

        Raises:
            BadContext: records are coordinates in this deployment; or a name is not declared, or a value has another
                type.
        """
        if self.features is None:
            raise BadContext(f"record: expected indices and values of {self.dimension} coordinates, got names")
        try:
            row = self.features.encode(values).row
        except FeatureError as error:
            raise BadContext(f"record: {error}; it was not sent") from None
        blocks, dense = self.features.blocks(self.features.read(row)), np.zeros(self.dimension)
        dense[0] = 1.0
        np.add.at(dense[1:], blocks.cells[0], blocks.values[0])
        indices = np.flatnonzero(dense)
        return indices, dense[indices] / np.sqrt(np.sum(dense * dense))

    def check_node(self, node: int) -> None:
        """Refuse a node that the deployment does not have.

        Raises:
            RequestRefused: there is no such node.
        """
        if not 0 <= node < self.nodes:
            raise RequestRefused(f"node: expected one of {self.nodes}, from 0, got {node}")
