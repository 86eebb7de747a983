"""The machine of the learner role: what a learner holds, a fold for each batch, and its state on disk."""

from __future__ import annotations

from collections.abc import Generator

from hushstream.engine.deciding import Journaled
from hushstream.engine.machine import finished
from hushstream.systems.p2b.machines import learner_state
from hushstream.systems.p2b.machines.learner_base import Learner
from hushstream.systems.p2b.machines.learner_fold import LearnerFold


class LearnerMachine(Learner):
    """A `Learner` that folds batches."""

    def _batch(self, sequence: int, journaled: Journaled | None) -> LearnerFold:
        return LearnerFold(self, journaled)

    # State on disk.

    def snapshot(self) -> bytes:
        return finished(self.snapshot_portions())

    def snapshot_portions(self) -> Generator[None, None, bytes]:
        return learner_state.portions(self)

    def restore(self, snapshot: bytes) -> None:
        learner_state.restore(self, snapshot)
