"""The roles of BGTplanner: what each reads and writes, how its machine is made, what it may show of it."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine.declare.gauges import model_gauges
from hushstream.engine.declare.role import RoleKeys, answering_role, publishing_role, releasing_role
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


def _rater_gauges(machine: RaterMachine, now_seconds: float) -> Mapping[str, float]:
    return model_gauges(machine.received.version, machine.received.reader.published_ms, now_seconds)


RATER = answering_role(
    "rater",
    EDGE_ZONE,
    _rater,
    inputs=("ratings",),
    journal="predictions",
    writes=("updates",),
    broadcasts=("models", "rounds"),
    marks="marks-edge",
    homes="learner",
    gauges=_rater_gauges,
    reasons=REASONS,
    outcomes=RATER_OUTCOMES,
)

COLLECTOR = releasing_role(
    "collector",
    SHUFFLER_ZONE,
    _collector,
    inputs=("updates",),
    journal="journal-collector",
    writes=("releases", "ledger"),
    homes="shuffler",
    charges="slots",
    reasons=REASONS,
    private_work=False,
    outcomes=COLLECTOR_OUTCOMES,
)

AGGREGATOR = publishing_role(SERVER_ZONE, BgtAggregatorMachine, writes=("rounds",), outcomes=AGGREGATOR_OUTCOMES)

ROLES = (RATER, COLLECTOR, AGGREGATOR)
