"""The machine of a collaborative learner: what it holds, a fold for each batch, and its state on disk."""

from __future__ import annotations

from hushstream.engine.deciding import Journaled
from hushstream.systems.colin.edge import learner_state
from hushstream.systems.colin.edge.learner_base import CollaborativeLearner
from hushstream.systems.colin.edge.learner_fold import CollaborativeFold


class CollaborativeLearnerMachine(CollaborativeLearner):
    """A `CollaborativeLearner` that folds batches."""

    def _batch(self, sequence: int, journaled: Journaled | None) -> CollaborativeFold:
        return CollaborativeFold(self, journaled)

    # State on disk.

    def snapshot(self) -> bytes:
        return learner_state.dump(self)

    def restore(self, snapshot: bytes) -> None:
        learner_state.restore(self, snapshot)
