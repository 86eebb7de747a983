"""The state from which the next decision of a user follows, if features are declared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.sparse import OwnSteps, SparseModel


class FeatureState(NamedTuple):
    """A shared model, and the steps that one user learned alone since they started from it.

    Attributes:
        model: the shared model.
        own: what the user learned; None in the state of the shared model itself.
        entries: (K,) int32, for each row of the model the catalogue version at which the row's item entered; None if
            items have no names. It changes with the model's rows.
        late: (K,) bool, whether the row's item entered when the model already knew other items. Such a row began from
            these items, and later models mix them in as long as the item is there (`new_items`). None if items have no
            names. It changes with the model's rows.
    """

    model: SparseModel
    own: DatedSteps | None = None
    entries: NDArray[np.int32] | None = None
    late: NDArray[np.bool_] | None = None


class DatedSteps(OwnSteps):
    """The steps that one user learned alone, under a version of the catalogue.

    Attributes:
        catalogue: the version up to which steps are dropped if their items have left their rows; 0 if items have no
            names.
    """

    __slots__ = ("catalogue",)

    def __init__(self, cells: int, capacity: int = 4) -> None:
        """Begin with nothing learned."""
        super().__init__(cells, capacity)
        self.catalogue = 0
