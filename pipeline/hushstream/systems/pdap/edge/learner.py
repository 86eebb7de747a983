"""The machine of a P-DAP learner: what it holds, and a fold for each batch."""

from __future__ import annotations

from hushstream.engine.deciding import Journaled
from hushstream.systems.pdap.edge.learner_base import PdapLearner
from hushstream.systems.pdap.edge.learner_fold import PdapFold


class PdapLearnerMachine(PdapLearner):
    """A `PdapLearner` that folds batches."""

    def _batch(self, sequence: int, journaled: Journaled | None) -> PdapFold:
        return PdapFold(self, journaled)
