"""The roles of P-DAP: what each reads and writes, how its machine is made, what it may show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hushstream.engine.declare.gauges import budget_gauges, model_gauges, version_gauges
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.role import Role, RoleKeys
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


def _aggregator(system: PdapSystem, track: int, keys: RoleKeys) -> PdapAggregatorMachine:
    return PdapAggregatorMachine(system, track)


def _learner_gauges(machine: PdapLearnerMachine, now_seconds: float) -> Mapping[str, float]:
    return model_gauges(machine.serving.version, machine.models[0].published_ms, now_seconds)


def _counter_gauges(machine: BlockCounterMachine, now_seconds: float) -> Mapping[str, float]:
    return budget_gauges("reward", machine.spending, machine.refused)


LEARNER = Role(
    name="learner",
    zone=EDGE_ZONE,
    key_zone=EDGE_ZONE,
    inputs=("contexts", "clicks"),
    journal="decisions",
    writes=("outcomes", "dead-letters-edge"),
    writes_abroad=("forwards",),
    broadcasts=("models",),
    marks="marks-edge",
    homes="learner",
    make=_learner,
    gauges=_learner_gauges,
    reasons=tuple(PdapRefusal),
    private_work=True,
    outcomes={**OUTCOMES, **JOIN_OUTCOMES, ARM_CHANGED: "slot-public"},
    each=True,
)

COUNTER = Role(
    name="counter",
    zone=COUNTER_ZONE,
    key_zone=COUNTER_ZONE,
    inputs=("outcomes",),
    journal="journal-counter",
    writes=("releases", "ledger", "dead-letters-counter"),
    marks="marks-counter",
    homes="counter",
    make=_counter,
    gauges=_counter_gauges,
    scope_classes=("reward",),
    reasons=tuple(PdapRefusal),
    private_work=False,
    outcomes={**OUTCOMES, ARM_CHANGED: "slot-public", BEYOND_HORIZON: "slot-public"},
    proof=overlaps,
)

AGGREGATOR = Role(
    name="aggregator",
    zone=SERVER_ZONE,
    key_zone=None,
    inputs=("releases",),
    journal="models",
    writes=("dead-letters-server",),
    homes="tracks",
    make=_aggregator,
    gauges=version_gauges,
    reasons=tuple(PdapRefusal),
    private_work=False,
    outcomes={**OUTCOMES, ARM_CHANGED: "slot-public"},
)

ROLES = (LEARNER, COUNTER, AGGREGATOR)

HOME_ROLES = (LEARNER, replace(COUNTER, each=True), AGGREGATOR)
"""Where each vendor has a counter of its own."""
