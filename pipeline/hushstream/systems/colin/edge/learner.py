"""The machine of a collaborative learner: what it holds, and a fold for each batch."""

from __future__ import annotations

from hushstream.engine.deciding import Journaled
from hushstream.systems.colin.edge.learner_base import CollaborativeLearner
from hushstream.systems.colin.edge.learner_fold import CollaborativeFold


class CollaborativeLearnerMachine(CollaborativeLearner):
    """A `CollaborativeLearner` that folds batches."""

    def _batch(self, sequence: int, journaled: Journaled | None) -> CollaborativeFold:
        return CollaborativeFold(self, journaled)
