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

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.awaiting import Awaiting
from hushstream.engine.deciding import DECIDING, MEMORIES, only_reader
from hushstream.engine.intake import DecodedContexts, decode_checked
from hushstream.engine.machine import InputSlice
from hushstream.engine.models import ModelReader
from hushstream.engine.shown_feedback import ShownEarlyFeedback
from hushstream.engine.spending import SPENDING, Spending
from hushstream.engine.state.declared import FIXED, Several, State, integer, own_part, rows
from hushstream.engine.state_parts import array, record
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


_OPEN = record(
    "OpenRow",
    event_id="string",
    decided_ms="long",
    node="int",
    arm="int",
    model_version="int",
    features="bytes",
    shown="boolean",
    other_shown="boolean",
    reward=["null", "double"],
)


def _pack_shared(role: CollaborativeLearner) -> Mapping[str, Any]:
    shared = role.shared
    return {
        "model_version": shared.version,
        "parameters": shared.parameters.astype("<f8").tobytes(),
        "widths": shared.widths.astype("<f8").tobytes(),
    }


def _unpack_shared(role: CollaborativeLearner, values: Mapping[str, Any]) -> None:
    nodes, d = role.system.nodes, role.system.features.dimension
    role.shared = SharedParameters(
        values["model_version"],
        np.frombuffer(values["parameters"], "<f8").reshape(nodes, d).astype(np.float64),
        np.frombuffer(values["widths"], "<f8").reshape(nodes, d, d).astype(np.float64),
    )


def _pack_open(role: CollaborativeLearner) -> Mapping[str, Any]:
    rows = ((event_id, role.open[event_id]) for _, event_id in role.due)
    return {
        "open": [
            {"event_id": event_id, **row._asdict(), "features": row.features.astype("<f4").tobytes()}
            for event_id, row in rows
        ]
    }


def _unpack_open(role: CollaborativeLearner, values: Mapping[str, Any]) -> None:
    role.open, role.due = {}, deque()
    for item in values["open"]:
        event_id = item.pop("event_id")
        role.due.append((item["decided_ms"], event_id))
        role.open[event_id] = OpenRow(**{**item, "features": np.frombuffer(item["features"], "<f4")})


def _pack_sums(role: CollaborativeLearner) -> Mapping[str, Any]:
    return {"noised_sums": b"" if role.noised_sums is None else role.noised_sums.dump()}


def _unpack_sums(role: CollaborativeLearner, values: Mapping[str, Any]) -> None:
    if role.noised_sums is not None:
        role.noised_sums = role.open_noised_sums()
        role.noised_sums.load(values["noised_sums"])


class CollaborativeLearner(Awaiting[OpenRow]):
    """The learner of a collaborative system on one partition of contexts and clicks."""

    state = State(
        "a collaborative learner's state",
        6,
        "CollaborativeLearnerState",
        DECIDING,
        models=only_reader(),
        shared=Several(
            {"model_version": "int", "parameters": "bytes", "widths": "bytes"}, _pack_shared, _unpack_shared
        ),
        open=Several({"open": array(_OPEN)}, _pack_open, _unpack_open),
        **MEMORIES,
        taken=rows("<i8"),
        leaf=integer(),
        records=integer(),
        noised_sums=Several({"noised_sums": "bytes"}, _pack_sums, _unpack_sums),
        spending=own_part(SPENDING),
    )
    derived: ClassVar[Mapping[str, str]] = {"due": "the open rows, in their order", "foreign": FIXED}
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
