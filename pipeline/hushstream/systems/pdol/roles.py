"""The roles of PDOL: what each reads and writes, how its machine is made, what it may show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hushstream.engine.declare.gauges import budget_gauges, model_gauges, spending_gauges
from hushstream.engine.declare.role import Role, RoleKeys, answering_role, publishing_role
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


def _node_gauges(machine: HomeMachine, now_seconds: float) -> Mapping[str, float]:
    spent = budget_gauges("record", machine.spending, machine.refused)
    return {**spent, **model_gauges(machine.sharing.version, machine.readers[0].published_ms, now_seconds)}


NODE = answering_role(
    "node",
    EDGE_ZONE,
    _node,
    inputs=("records",),
    journal="predictions",
    writes=("releases", "ledger"),
    marks="marks-edge",
    homes="learner",
    gauges=_node_gauges,
    scope_classes=("record",),
    reasons=REASONS,
    outcomes=NODE_OUTCOMES,
)

AGGREGATOR = publishing_role(SERVER_ZONE, AggregatorMachine, outcomes=AGGREGATOR_OUTCOMES)

GOSSIP_NODE = replace(
    NODE,
    writes=("parameters", "ledger", "dead-letters-edge"),
    broadcasts=("parameters",),
    make=_gossip_node,
    gauges=partial(spending_gauges, "record"),
)
"""In the form of the paper."""

ROLES = (NODE, AGGREGATOR, GOSSIP_NODE)
"""All that a deployment may have."""


def roles_of(gossips: bool) -> tuple[Role, ...]:
    """Those that a deployment has."""
    return (GOSSIP_NODE,) if gossips else (NODE, AGGREGATOR)
