"""The learner role of a collaborative system: decides by the shared model, joins rewards, passes rows on.

A user has no model of their own here: what they see follows from the last published version, which is why their
decisions tell others nothing. The row of a decision leaves when its settle time has passed in log time, or at a phase
end: the features of the arm that was on screen, and its reward, 0 if none came by then. Log time is cut into spans as
long as the settle time, and the rows decided in one leave together (`DecisionRole.settled`). So whether a row leaves
depends on what was shown alone, and when, and in which record, on the log times of contexts and on phase ends: a
reward, or the lack of one, moves the number in its own row and nothing else. That holds for feedback before its
context, too (`hushstream.engine.shown_feedback`).

Where the counter is trusted, rows go to it in clear; otherwise they enter each user's own counter in this role,
and noised sums are released from here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.awaiting import Awaiting
from hushstream.engine.intake import DecodedContexts, decode_checked
from hushstream.engine.machine import InputSlice
from hushstream.engine.models import ModelReader
from hushstream.engine.shown_feedback import ShownEarlyFeedback
from hushstream.engine.spending import Spending
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.systems.colin.deployment import TRACK, CollaborativeSystem
from hushstream.systems.colin.edge.models import SharedParameters, cold_parameters
from hushstream.systems.colin.noised_sums import NoisedRewardSums


class OpenRow(NamedTuple):
    """A decision whose reward is awaited: its log time, the chosen arm's features, what feedback has said so far."""

    decided_ms: int
    node: int
    arm: int
    model_version: int
    features: NDArray[np.float32]
    shown: bool = False
    other_shown: bool = False
    reward: float | None = None


class CollaborativeLearner(Awaiting[OpenRow]):
    """The learner of a collaborative system on one partition of contexts and clicks."""

    system: CollaborativeSystem

    def __init__(self, system: CollaborativeSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        models = [ModelReader(system, 0, TRACK, "CollaborativeModel")]
        settle_ms, feedback = round(system.config.settle_seconds * 1000), system.config.feedback
        # Each user has a share of the places where feedback may wait, so that nobody's feedback moves another's.
        early = ShownEarlyFeedback(max(1, feedback.early_feedback // system.nodes))
        super().__init__(system, partition, key, models, early, feedback.remembered_events, settle_ms)
        self.shared: SharedParameters = cold_parameters(system)
        self.open: dict[str, OpenRow] = {}
        self.foreign = frozenset(user for user in system.graph.users if not self.is_home_of(user))
        """Users of other partitions."""
        self.taken = np.zeros(system.nodes, dtype=np.int64)
        self.leaf = 0
        """Releases made from here (where the noise is added at the edge)."""
        self.records = 0
        """Releases made from here: each is named by its number, so a cut changes no name."""
        self.noised_sums: NoisedRewardSums | None = None
        self.spending: Spending = Spending(system.spending_terms, partition)
        """What this role spends where the noise is added here; otherwise nothing is asked of it."""

    @property
    def refused(self) -> Exhausted | None:
        return None if self.noised_sums is None else self.spending.refusal(self.epoch.next_place())

    @property
    def _releases(self) -> bool:
        return self.noised_sums is not None

    @property
    def _reaches_ahead(self) -> bool:
        return self.noised_sums is not None and self.noised_sums.reaches_ahead

    def row_name(self, event_id: str) -> bytes:
        """16 opaque bytes that stand for the event of a row, in this journal and for this role alone."""
        return self.key.digest("row", self.chain.genesis_nonce, event_id.encode())

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        if self.system.config.release.noise_at == "learner":
            self.noised_sums = self.open_noised_sums()

    def open_noised_sums(self) -> NoisedRewardSums:
        """Running sums of this partition's users, under noise of this journal and epoch."""
        noise_key = self.key.derive("local-counters")
        return self.system.noised_sums(noise_key, self.nonce, self.epoch.number, self.partition)

    def _redraw(self) -> None:
        if self.noised_sums is not None:
            earlier = self.noised_sums
            self.noised_sums = self.open_noised_sums()
            self.noised_sums.redraw(earlier)

    def _decode(self, part: InputSlice) -> DecodedContexts:
        return decode_checked(part, self.system.requests)
