"""The roles of BGTplanner: what each reads and writes, how its machine is made, what it may show of it."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine.declare.gauges import budget_gauges, model_gauges, version_gauges
from hushstream.engine.declare.role import Role, RoleKeys
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.edge.rater import RaterMachine
from hushstream.systems.bgt.reasons import AGGREGATOR_OUTCOMES, COLLECTOR_OUTCOMES, RATER_OUTCOMES, REASONS
from hushstream.systems.bgt.server.machine import BgtAggregatorMachine
from hushstream.systems.bgt.shuffler.collector import CollectorMachine
from hushstream.systems.bgt.topics import EDGE_ZONE, SERVER_ZONE, SHUFFLER_ZONE


def _rater(system: BgtSystem, home: int, keys: RoleKeys) -> RaterMachine:
    return RaterMachine(system, home, keys.own)


def _collector(system: BgtSystem, home: int, keys: RoleKeys) -> CollectorMachine:
    return CollectorMachine(system, home, keys.own, keys.ring)


def _aggregator(system: BgtSystem, track: int, keys: RoleKeys) -> BgtAggregatorMachine:
    return BgtAggregatorMachine(system, track)


def _rater_gauges(machine: RaterMachine, now_seconds: float) -> Mapping[str, float]:
    return model_gauges(machine.received.version, machine.received.reader.published_ms, now_seconds)


def _collector_gauges(machine: CollectorMachine, now_seconds: float) -> Mapping[str, float]:
    return budget_gauges("slots", machine.spending, machine.refused)


RATER = Role(
    name="rater",
    zone=EDGE_ZONE,
    key_zone=EDGE_ZONE,
    inputs=("ratings",),
    journal="predictions",
    writes=("updates", "dead-letters-edge"),
    broadcasts=("models", "rounds"),
    marks="marks-edge",
    homes="learner",
    make=_rater,
    gauges=_rater_gauges,
    reasons=REASONS,
    private_work=True,
    outcomes=RATER_OUTCOMES,
)

COLLECTOR = Role(
    name="collector",
    zone=SHUFFLER_ZONE,
    key_zone=SHUFFLER_ZONE,
    inputs=("updates",),
    journal="journal-collector",
    writes=("releases", "ledger", "dead-letters-shuffler"),
    marks="marks-shuffler",
    homes="shuffler",
    make=_collector,
    gauges=_collector_gauges,
    scope_classes=("slots",),
    reasons=REASONS,
    private_work=False,
    outcomes=COLLECTOR_OUTCOMES,
)

AGGREGATOR = Role(
    name="aggregator",
    zone=SERVER_ZONE,
    key_zone=None,
    inputs=("releases",),
    journal="models",
    writes=("rounds", "dead-letters-server"),
    homes="tracks",
    make=_aggregator,
    gauges=version_gauges,
    private_work=False,
    outcomes=AGGREGATOR_OUTCOMES,
)

ROLES = (RATER, COLLECTOR, AGGREGATOR)
