"""What the next decision of a user follows from where features are declared."""

from __future__ import annotations

from typing import NamedTuple

from hushstream.learners.sparse import OwnSteps, SparseModel


class FeatureState(NamedTuple):
    """A shared model, and what one user learned alone upon it; None for the model as it is shared."""

    model: SparseModel
    own: OwnSteps | None = None
