"""The roles of collaborative bandits: what each reads and writes, how its machine is made, what it may show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hushstream.engine.declare.gauges import budget_gauges, model_gauges, version_gauges
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.role import Role, RoleKeys
from hushstream.feedback.join import JOIN_OUTCOMES
from hushstream.systems.colin.counter.machine import CounterMachine
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.edge.learner import CollaborativeLearnerMachine
from hushstream.systems.colin.server.machine import CollaborativeAggregatorMachine
from hushstream.systems.colin.topics import COUNTER_ZONE, EDGE_ZONE, SERVER_ZONE


def _learner(system: CollaborativeSystem, home: int, keys: RoleKeys) -> CollaborativeLearnerMachine:
    return CollaborativeLearnerMachine(system, home, keys.own)


def _counter(system: CollaborativeSystem, home: int, keys: RoleKeys) -> CounterMachine:
    return CounterMachine(system, home, keys.own, keys.ring)


def _aggregator(system: CollaborativeSystem, track: int, keys: RoleKeys) -> CollaborativeAggregatorMachine:
    return CollaborativeAggregatorMachine(system, track)


def _learner_gauges(machine: CollaborativeLearnerMachine, now_seconds: float) -> Mapping[str, float]:
    spent = {} if machine.noised_sums is None else budget_gauges("reward", machine.spending, machine.refused)
    return {**spent, **model_gauges(machine.shared.version, machine.models[0].published_ms, now_seconds)}


def _counter_gauges(machine: CounterMachine, now_seconds: float) -> Mapping[str, float]:
    # An epoch that adds noise anew to all rewards before it makes each of them pay again.
    return budget_gauges("reward", machine.spending, machine.refused)


LEARNER = Role(
    name="learner",
    zone=EDGE_ZONE,
    key_zone=EDGE_ZONE,
    inputs=("contexts", "clicks"),
    journal="decisions",
    writes=("rewards", "dead-letters-edge"),
    broadcasts=("models",),
    marks="marks-edge",
    homes="learner",
    make=_learner,
    gauges=_learner_gauges,
    scope_classes=("reward",),
    private_work=True,
    outcomes={**OUTCOMES, **JOIN_OUTCOMES},
)
"""Where a counter is trusted: rows go to it in clear."""

NOISING_LEARNER = replace(LEARNER, writes=("releases", "ledger", "dead-letters-edge"))
"""Where none is: the learner adds the noise."""

COUNTER = Role(
    name="counter",
    zone=COUNTER_ZONE,
    key_zone=COUNTER_ZONE,
    inputs=("rewards",),
    journal="journal-counter",
    writes=("releases", "ledger", "dead-letters-counter"),
    marks="marks-counter",
    homes="counter",
    make=_counter,
    gauges=_counter_gauges,
    scope_classes=("reward",),
    private_work=False,
    outcomes=OUTCOMES,
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
    private_work=False,
    outcomes=OUTCOMES,
)

LEARNERS_OF_ITEMS = tuple(replace(one, broadcasts=("models", "items")) for one in (LEARNER, NOISING_LEARNER))
"""Where items have names: both follow the catalogue."""

ROLES = (LEARNER, NOISING_LEARNER, *LEARNERS_OF_ITEMS, COUNTER, AGGREGATOR)
"""All that a deployment may have."""


def roles_of(counted: bool, named: bool) -> tuple[Role, ...]:
    """Those that a deployment has, with a trusted counter or without, and with items by name or without."""
    passing, noising = LEARNERS_OF_ITEMS if named else (LEARNER, NOISING_LEARNER)
    return (passing, COUNTER, AGGREGATOR) if counted else (noising, AGGREGATOR)
