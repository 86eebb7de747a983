"""The declaration of PDOL for the catalogue, and of its deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from hushstream.engine.declare.artefacts import Artefacts, Given
from hushstream.engine.declare.declaration import Erasure, Fact, Kind, System, Words, names_user
from hushstream.engine.declare.gauges import budget_gauges, model_gauges, spending_gauges
from hushstream.engine.declare.result import Result
from hushstream.engine.declare.role import Role, answering_role, publishing_role, ringed
from hushstream.engine.system import Priced
from hushstream.systems.pdol import plan
from hushstream.systems.pdol.advice import Advice, advise
from hushstream.systems.pdol.aggregator import AggregatorMachine
from hushstream.systems.pdol.budget import priced
from hushstream.systems.pdol.configuration import KEYS, PdolConfig
from hushstream.systems.pdol.deployment import PdolSystem
from hushstream.systems.pdol.nodes.counter_sharing import counter_home
from hushstream.systems.pdol.nodes.gossip_sharing import gossip_home
from hushstream.systems.pdol.nodes.home import HomeMachine
from hushstream.systems.pdol.outcomes import AGGREGATOR_OUTCOMES, NODE_OUTCOMES, REASONS
from hushstream.systems.pdol.requests import RecordRules
from hushstream.systems.pdol.topics import EDGE_ZONE, SERVER_ZONE, TOPICS, topics_of


def _node_gauges(machine: HomeMachine, now_seconds: float) -> Mapping[str, float]:
    spent = budget_gauges("record", machine.spending, machine.refused)
    return {**spent, **model_gauges(machine.sharing.version, machine.readers[0].published_ms, now_seconds)}


NODE = answering_role(
    "node",
    EDGE_ZONE,
    ringed(counter_home),
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
    make=ringed(gossip_home),
    gauges=partial(spending_gauges, "record"),
)
"""In the form of the paper."""

ROLES = (NODE, AGGREGATOR, GOSSIP_NODE)
"""All roles that a deployment may have."""


def roles_of(gossips: bool) -> tuple[Role, ...]:
    """The roles of a deployment."""
    return (GOSSIP_NODE,) if gossips else (NODE, AGGREGATOR)


NAME = "pdol"


def declare(core: PdolSystem) -> System:
    """A deployment."""
    config = core.config
    return System(
        core=core,
        roles=roles_of(core.gossips),
        topics=topics_of(core.gossips),
        erasure=_erasure(core),
        words=_words(config),
        facts={"nodes": config.nodes, "homes": core.counts["learner"], "dimension": config.records.dimension},
        requests=RecordRules(config.nodes, config.records.dimension, config.records.declared),
    )


def _prepare(config: PdolConfig, given: Given) -> Mapping[str, bytes]:
    """Refuse an invalid deployment.

    There are no files to make, because graph and counters follow from the configuration.

    Raises:
        ConfigurationError: see `PdolSystem.of`.
        BadGraph: see `PdolSystem.of`.
    """
    PdolSystem.of(config)
    return {}


def _assemble(config: PdolConfig, artefacts: Artefacts) -> System:
    return declare(PdolSystem.of(config, artefacts.public_dataset is not None))


def _priced(config: PdolConfig, artefacts: Artefacts) -> Priced:
    return priced(config)


def _check(config: PdolConfig) -> None:
    PdolSystem.of(config)


def _advice(config: PdolConfig) -> Advice | None:
    """Advice for the number of records that the counters are sized for; None without noise."""
    if config.gossip is not None or config.sharing.counter == "exact":
        return None
    slots = sum(config.slots_of(domain) for domain in range(config.domains)) * config.sharing.horizon
    return advise(config, slots / config.nodes)


def _facts(config: PdolConfig, artefacts: Artefacts) -> Sequence[Fact]:
    """The advice, for the page of the guarantee."""
    advice = _advice(config)
    if advice is None:
        return ()
    crossing = -1.0 if advice.crossing is None else advice.crossing
    return (
        Fact("crossing_records", crossing, advice.as_text().rstrip("\n")),
        Fact(
            "share_of_central_gain",
            advice.gain,
            "Both figures suppose that all nodes hold records of one kind; the number from which sharing pays is right"
            " within a factor of four.",
        ),
    )


def _notes(config: PdolConfig) -> Sequence[str]:
    advice = _advice(config)
    return () if advice is None else advice.as_text().splitlines()


_TRUST = (
    "central, at each domain; hosted: the operator's node workers see records and labels in clear, and hold the "
    "counters of all domains; everybody after them sees noised sums"
)


_RESULTS = {
    place: Result(
        data="labelled records of persons, and predictions of their labels",
        what=f"one linear classifier of all holders; {whose}",
        product="continually updated linear classifier",
        release="interactive to the nodes of all holders, repeated; published topics",
    )
    for place, whose in {
        "released": "what is predicted for a record follows from that record and from what was released alone",
        "node": "what a node predicts follows from the exact records of that node too",
    }.items()
}


def _words(config: PdolConfig) -> Words:
    return Words(
        trust=_TRUST,
        erasure="hushstream forget turns the person's open slots into null ones; their records go with their topic's "
        "retention; gradients that were counted before stay in the exact sums of the domain, which leave with noise",
        example="one record of Ann's was among those that a node has learned from",
        result=_RESULTS[config.prediction.place],
    )


def _erasure(core: PdolSystem) -> Erasure:
    released = "without noise, as the deployment is on public data"
    if core.guarantee().private_as_stated:
        released = "with noise; their guarantee covers it"
    return Erasure(
        stays=(
            f"gradients of records that were counted before: in sums as they were released, {released}, and in the "
            "exact sum of the domain, in its data directory, out of which nobody can take a single record",
            "how many of their records have been counted, under a tag that stands for them in this journal: no "
            "allowance is refilled",
            "event ids in the predictions journal, which names no user; an event id should not name one either",
        ),
        waits=(
            "their open slots in the node's data directory: until the next snapshot; sealed on state-node: five days",
        ),
        names=names_user,
        # A person may have records at any node.
        homes=lambda user, partitions: tuple(range(partitions)),
    )


KIND = Kind(
    name=NAME,
    summary="holders of labelled records learn one linear model of noised sums, and show one another no record",
    config=PdolConfig,
    unit="record",
    keys=KEYS,
    topics=TOPICS,
    roles=ROLES,
    artefacts=(),
    prepare=_prepare,
    assemble=_assemble,
    priced=_priced,
    check=_check,
    facts=_facts,
    notes=_notes,
    plan=lambda config, artefacts, audience: plan.plan(config, audience),
    study="hushstream.replay.studies.pdol.study:STUDY",
)
