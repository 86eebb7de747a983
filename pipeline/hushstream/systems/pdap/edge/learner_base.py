"""The learner role of P-DAP: answers by the tickets of the last published model, joins rewards, passes outcomes on.

No click is seen by what chooses: an answer is a function of the context's cell, of a model made of releases alone, and
of a keyed coin of the event. A learner serves the users of one vendor, which contexts name as their track; it reads no
other vendor's contexts or clicks.
The outcome of a decision leaves at its deadline (`hushstream.engine.awaiting`), to the counter of its home, or to the
one counter. Where the chosen arm is another vendor's, a forward tells that vendor: the cell, never the context.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushstream.engine.awaiting import Awaiting
from hushstream.engine.deciding import DECIDING, MEMORIES, only_reader
from hushstream.engine.intake import DecodedContexts, decode_checked
from hushstream.engine.machine import InputSlice
from hushstream.engine.models import ModelReader
from hushstream.engine.shown_feedback import ShownEarlyFeedback
from hushstream.engine.state.declared import FIXED, Several, State, own_part
from hushstream.engine.state_parts import array, record
from hushstream.privacy.keys import Key
from hushstream.systems.pdap.aggregate import Aggregate
from hushstream.systems.pdap.deployment import TRACK, PdapSystem, inside
from hushstream.systems.pdap.serving import SERVING, Serving

_OWN = frozenset({"ArmChange"})


@dataclass(slots=True)
class PathContexts(DecodedContexts):
    """Contexts with their paths on the deepest level of the grid, which no model changes."""

    paths: list[int] = field(default_factory=list)


class OpenRow(NamedTuple):
    """A decision whose reward is awaited: when, for whom, what and where, and what feedback has said so far."""

    decided_ms: int
    user: str
    arm: int
    propensity: int
    model_version: int
    cell: int
    arrival: int
    shown: bool = False
    other_shown: bool = False
    reward: float | None = None


_OPEN = record(
    "OpenRow",
    event_id="string",
    decided_ms="long",
    user="string",
    arm="int",
    propensity="long",
    model_version="int",
    cell="long",
    arrival="long",
    shown="boolean",
    other_shown="boolean",
    reward=["null", "double"],
)


def _pack_open(role: PdapLearner) -> Mapping[str, Any]:
    return {"open": [{"event_id": event_id, **role.open[event_id]._asdict()} for _, event_id in role.due]}


def _unpack_open(role: PdapLearner, values: Mapping[str, Any]) -> None:
    role.open, role.due = {}, deque()
    for item in values["open"]:
        event_id = item.pop("event_id")
        role.due.append((item["decided_ms"], event_id))
        role.open[event_id] = OpenRow(**item)


class PdapLearner(Awaiting[OpenRow]):
    """The learner on one partition of contexts and clicks."""

    state = State(
        "a P-DAP learner's state",
        2,
        "PdapLearnerState",
        DECIDING,
        models=only_reader(),
        serving=own_part(record("Serving", **SERVING)),
        open=Several({"open": array(_OPEN)}, _pack_open, _unpack_open),
        **MEMORIES,
    )
    derived: ClassVar[Mapping[str, str]] = {"due": "the open rows, in their order", "vendor": FIXED, "home": FIXED}
    system: PdapSystem
    spending = None

    def __init__(self, system: PdapSystem, vendor: str, partition: int, key: Key) -> None:
        """Bind to a deployment, a vendor by name, one of its home partitions and its edge key."""
        feedback = system.config.feedback
        # What was shown is public, so that users may share the places; no reward takes one.
        early = ShownEarlyFeedback(feedback.early_feedback, feedback.early_feedback)
        models = [ModelReader(system, 0, TRACK, "TicketModel")]
        super().__init__(system, partition, key, models, early, feedback.remembered_events, system.settle_ms, vendor)
        self.vendor, self.home = vendor, system.homes[vendor]
        self.open: dict[str, OpenRow] = {}
        self.serving = cold_serving(system, key)

    @property
    def _releases(self) -> bool:
        return False

    @property
    def _reaches_ahead(self) -> bool:
        return False

    def _redraw(self) -> None:
        """Nothing is noised here."""

    def outcome_name(self, user: str, event_id: str) -> bytes:
        """16 opaque bytes that stand for the outcome of a user's event, for its counter alone.

        No journal is in it: whoever begins one anew, and sends again what the lost one had sent, sends it under the
        same name, which the counter takes once. Names of two events of one user have nothing in common.
        """
        of = (self.system.config.deployment, self.vendor, user, event_id)
        return self.key.digest("outcome", *(name.encode() for name in of))

    def forward_name(self, event_id: str) -> bytes:
        """16 opaque bytes that stand for the forward of an event, for the serving vendor alone."""
        return self.key.digest("forward", self.chain.genesis_nonce, event_id.encode())

    def _decode(self, part: InputSlice) -> PathContexts:
        grid = self.system.config.grid
        found = decode_checked(part, self.system.requests, _OWN)
        contexts = found.columns.contexts
        # What is refused has no path; any stands for it.
        paths = grid.paths(np.where(inside(contexts)[:, None], contexts, np.float32(0))).tolist()
        return PathContexts(found.low, found.high, found.columns, found.refused, found.oversized, paths)


def cold_serving(system: PdapSystem, key: Key) -> Serving:
    """What stands before the first version: the tickets that follow from the configuration alone."""
    serving = Serving(system.config.grid, key)
    serving.apply(Aggregate(system.config).publish())
    return serving
