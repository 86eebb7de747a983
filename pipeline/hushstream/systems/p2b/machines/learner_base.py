"""The learner role: many `EdgeAgent`s on a stream (edge zone).

What a batch folds (`hushstream.engine.deciding_fold`) and what was decided go into one decisions record, which is at
once the answer to the client and the journal. Slots follow from it; their bytes are fixed by the fold and their digest
is journaled before they are sent.
"""

from __future__ import annotations

from hushstream.engine.deciding import DecisionRole
from hushstream.engine.early_feedback import UserEarlyFeedback
from hushstream.engine.intake import DecodedContexts, decode_checked
from hushstream.engine.machine import InputSlice
from hushstream.engine.models import ModelReader
from hushstream.engine.spending import Spending
from hushstream.engine.spilled_users import UserStore
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.privacy.noise import NoiseAddress
from hushstream.systems.p2b.deployment import TRACKS, P2BSystem
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.deadlines import Deadlines
from hushstream.systems.p2b.edge.users import Users
from hushstream.systems.p2b.lift import LiftCounter, in_holdout


class Learner(DecisionRole):
    """The learner on one partition of contexts and clicks."""

    keeps_users = True

    system: P2BSystem
    early: UserEarlyFeedback

    def __init__(self, system: P2BSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        self._resident: int | None = None
        config = system.config
        super().__init__(
            system,
            partition,
            key,
            [ModelReader(system, track, TRACKS[track], "Model") for track in range(system.track_count)],
            UserEarlyFeedback(config.feedback.early_feedback, config.users.early_feedback),
            config.feedback.remembered_events,
            round(config.slot.settle_seconds * 1000),
        )
        self.terms = system.edge_terms()
        self.agents = self.make_users(None)
        self.deadlines = Deadlines()
        self.period_ms = round(config.slot.period_seconds * 1000)
        after = config.users.expire_after_seconds
        self.expire_ms = None if after is None else max(1, round(after * 1000))
        self.sweep_ms = max(1, (self.expire_ms or 0) // 4)
        """How often, in log time, what has expired is looked for among those who do not come back."""
        self.lift: LiftCounter | None = None
        self.spending: Spending | None = Spending(system.lift_terms, partition) if config.lift.holdout else None
        """What the lift's releases spend, where there are any."""
        self.lift_ms = round(config.lift.every_seconds * 1000)

    @property
    def refused(self) -> Exhausted | None:
        """See `Machine.refused`: the lift's releases."""
        return None if self.spending is None else self.spending.refusal(self.epoch.next_place())

    @property
    def _releases(self) -> bool:
        return self.lift is not None

    @property
    def _reaches_ahead(self) -> bool:
        return self.lift is not None

    def _redraw(self) -> None:
        if self.lift is not None:
            self.lift.redraw(self._lift_address())

    def keep_users(self, store: UserStore, resident: int) -> None:
        self._resident = resident
        self.agents = self.make_users(store)

    def make_users(self, store: UserStore | None) -> Users:
        """Users over a store, none of them in memory."""
        return Users(self.terms, self.key, store, self._resident)

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.lift = self.open_lift()

    def open_lift(self) -> LiftCounter | None:
        """The lift's counter under noise of this journal; None where there is no hold-out."""
        config = self.system.config
        if not config.lift.holdout:
            return None
        wait_ms = self.terms.attribution_window_ms
        key = self.key.derive("lift")
        return LiftCounter(config.lift, config.release.levels, wait_ms, key, self._lift_address())

    def _lift_address(self) -> NoiseAddress:
        return self.system.lift_address(self.nonce, self.partition, self.epoch.number)

    def in_holdout(self, agent: EdgeAgent) -> bool:
        """Whether a user is never answered by a model."""
        return self.lift is not None and in_holdout(agent.key, self.system.config.lift)

    def lift_id(self, *parts: int) -> bytes:
        """16 opaque bytes that name a release of the lift, or (without parts) its counter."""
        place = b"".join(part.to_bytes(8, "little") for part in (self.partition, *parts))
        # The counter keeps its name over all epochs, so that its newest release takes the place of those before.
        return self.key.digest("lift-id", self.nonce if parts else self.chain.genesis_nonce, place)

    def _decode(self, part: InputSlice) -> DecodedContexts:
        return decode_checked(part, self.system.requests)

    def user_key(self, user: str) -> Key:
        """The key that a user's coins and report ids come from, derived from the edge key."""
        return self.agents.user_key(user)
