"""What the next decision of a user follows from where features are declared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.sparse import OwnSteps, SparseModel


class FeatureState(NamedTuple):
    """A shared model, and what one user learned alone upon it; None for the model as it is shared.

    Attributes:
        model: the shared one.
        own: what the user learned.
        entries: (K,) int32, the catalogue versions at which the items entered that the model's rows stand for; None
            where items have no names. It changes with the model's rows.
        late: (K,) bool, rows whose items entered when the model knew others: it began them from those, and leans on
            them as long as the item is there; None where items have no names. It changes with the model's rows.
    """

    model: SparseModel
    own: DatedSteps | None = None
    entries: NDArray[np.int32] | None = None
    late: NDArray[np.bool_] | None = None


class DatedSteps(OwnSteps):
    """What one user learned alone, as of a version of the catalogue.

    Attributes:
        catalogue: up to which version steps were dropped whose items have left their rows; 0 where items have no names.
    """

    __slots__ = ("catalogue",)

    def __init__(self, cells: int, capacity: int = 4) -> None:
        """Begin with nothing learned."""
        super().__init__(cells, capacity)
        self.catalogue = 0
