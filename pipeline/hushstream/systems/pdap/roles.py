"""The roles of P-DAP: what each reads and writes, how its machine is made, what it may show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hushstream.engine.declare.gauges import model_gauges
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.role import RoleKeys, answering_role, publishing_role, releasing_role
from hushstream.feedback.join import JOIN_OUTCOMES
from hushstream.systems.pdap.counter.disjoint import overlaps
from hushstream.systems.pdap.counter.machine import BlockCounterMachine
from hushstream.systems.pdap.deployment import PdapSystem
from hushstream.systems.pdap.edge.learner import PdapLearnerMachine
from hushstream.systems.pdap.reasons import ARM_CHANGED, BEYOND_HORIZON, PdapRefusal
from hushstream.systems.pdap.server.machine import PdapAggregatorMachine
from hushstream.systems.pdap.topics import COUNTER_ZONE, EDGE_ZONE, SERVER_ZONE


def _learner(system: PdapSystem, home: int, keys: RoleKeys, party: str) -> PdapLearnerMachine:
    return PdapLearnerMachine(system, party, home, keys.own)


def _counter(system: PdapSystem, home: int, keys: RoleKeys, party: str = "") -> BlockCounterMachine:
    return BlockCounterMachine(system, keys.own, keys.ring, party)


def _learner_gauges(machine: PdapLearnerMachine, now_seconds: float) -> Mapping[str, float]:
    return model_gauges(machine.serving.version, machine.models[0].published_ms, now_seconds)


LEARNER = answering_role(
    "learner",
    EDGE_ZONE,
    _learner,
    inputs=("contexts", "clicks"),
    journal="decisions",
    writes=("outcomes",),
    writes_abroad=("forwards",),
    marks="marks-edge",
    homes="learner",
    gauges=_learner_gauges,
    reasons=tuple(PdapRefusal),
    outcomes={**OUTCOMES, **JOIN_OUTCOMES, ARM_CHANGED: "slot-public"},
    each=True,
)

COUNTER = releasing_role(
    "counter",
    COUNTER_ZONE,
    _counter,
    inputs=("outcomes",),
    journal="journal-counter",
    writes=("releases", "ledger"),
    homes="counter",
    charges="reward",
    reasons=tuple(PdapRefusal),
    private_work=False,
    outcomes={**OUTCOMES, ARM_CHANGED: "slot-public", BEYOND_HORIZON: "slot-public"},
    proof=overlaps,
)

AGGREGATOR = publishing_role(
    SERVER_ZONE,
    PdapAggregatorMachine,
    reasons=tuple(PdapRefusal),
    outcomes={**OUTCOMES, ARM_CHANGED: "slot-public"},
)

ROLES = (LEARNER, COUNTER, AGGREGATOR)

HOME_ROLES = (LEARNER, replace(COUNTER, each=True), AGGREGATOR)
"""Where each vendor has a counter of its own."""
