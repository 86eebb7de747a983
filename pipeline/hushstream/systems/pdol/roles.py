"""The roles of PDOL: what each reads and writes, how its machine is made, what it may show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hushstream.engine.declare.gauges import budget_gauges, model_gauges, version_gauges
from hushstream.engine.declare.role import Role, RoleKeys
from hushstream.systems.pdol.aggregator import AggregatorMachine
from hushstream.systems.pdol.deployment import PdolSystem
from hushstream.systems.pdol.nodes.counter_sharing import counter_home
from hushstream.systems.pdol.nodes.gossip_sharing import gossip_home
from hushstream.systems.pdol.nodes.home import HomeMachine
from hushstream.systems.pdol.outcomes import AGGREGATOR_OUTCOMES, NODE_OUTCOMES, REASONS
from hushstream.systems.pdol.topics import EDGE_ZONE, SERVER_ZONE


def _node(system: PdolSystem, home: int, keys: RoleKeys) -> HomeMachine:
    return counter_home(system, home, keys.own, keys.ring)


def _gossip_node(system: PdolSystem, home: int, keys: RoleKeys) -> HomeMachine:
    return gossip_home(system, home, keys.own, keys.ring)


def _gossip_gauges(machine: HomeMachine, now_seconds: float) -> Mapping[str, float]:
    return budget_gauges("record", machine.spending, machine.refused)


def _aggregator(system: PdolSystem, track: int, keys: RoleKeys) -> AggregatorMachine:
    return AggregatorMachine(system, track)


def _node_gauges(machine: HomeMachine, now_seconds: float) -> Mapping[str, float]:
    spent = budget_gauges("record", machine.spending, machine.refused)
    return {**spent, **model_gauges(machine.sharing.version, machine.readers[0].published_ms, now_seconds)}


NODE = Role(
    name="node",
    zone=EDGE_ZONE,
    key_zone=EDGE_ZONE,
    inputs=("records",),
    journal="predictions",
    writes=("releases", "ledger", "dead-letters-edge"),
    broadcasts=("models",),
    marks="marks-edge",
    homes="learner",
    make=_node,
    gauges=_node_gauges,
    scope_classes=("record",),
    reasons=REASONS,
    private_work=True,
    outcomes=NODE_OUTCOMES,
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
    outcomes=AGGREGATOR_OUTCOMES,
)

GOSSIP_NODE = replace(
    NODE,
    writes=("parameters", "ledger", "dead-letters-edge"),
    broadcasts=("parameters",),
    make=_gossip_node,
    gauges=_gossip_gauges,
)
"""In the form of the paper."""

ROLES = (NODE, AGGREGATOR, GOSSIP_NODE)
"""All that a deployment may have."""


def roles_of(gossips: bool) -> tuple[Role, ...]:
    """Those that a deployment has."""
    return (GOSSIP_NODE,) if gossips else (NODE, AGGREGATOR)
