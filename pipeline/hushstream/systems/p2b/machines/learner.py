"""The machine of the learner role: what a learner holds, and a fold for each batch."""

from __future__ import annotations

from hushstream.engine.deciding import Journaled
from hushstream.systems.p2b.machines.learner_base import Learner
from hushstream.systems.p2b.machines.learner_fold import LearnerFold


class LearnerMachine(Learner):
    """A `Learner` that folds batches."""

    def _batch(self, sequence: int, journaled: Journaled | None) -> LearnerFold:
        return LearnerFold(self, journaled)
