"""The machine of a P-DAP learner: what it holds, a fold for each batch, and its state on disk."""

from __future__ import annotations

from hushstream.engine.deciding import Journaled
from hushstream.systems.pdap.edge import learner_state
from hushstream.systems.pdap.edge.learner_base import PdapLearner
from hushstream.systems.pdap.edge.learner_fold import PdapFold


class PdapLearnerMachine(PdapLearner):
    """A `PdapLearner` that folds batches."""

    def _batch(self, sequence: int, journaled: Journaled | None) -> PdapFold:
        return PdapFold(self, journaled)

    # State on disk.

    def snapshot(self) -> bytes:
        return learner_state.dump(self)

    def restore(self, snapshot: bytes) -> None:
        learner_state.restore(self, snapshot)
