"""What applications may ask of a PDOL deployment."""

from __future__ import annotations

from typing import NamedTuple

from hushstream.engine.declare.requests import RequestRefused


class RecordRules(NamedTuple):
    """What is taken of a record, beside the bounds that `hushstream.systems.pdol.algorithm.edge.quantise` puts it
    within.

    Attributes:
        nodes: how many there are.
        dimension: coordinates of a record.
    """

    nodes: int
    dimension: int

    def check_node(self, node: int) -> None:
        """Refuse a node that the deployment does not have.

        Raises:
            RequestRefused: it is none of them.
        """
        if not 0 <= node < self.nodes:
            raise RequestRefused(f"node: expected one of {self.nodes}, from 0, got {node}")
