"""The declaration of PDOL for the catalogue, and of its deployments.

*Requests.* Rules of requests to a PDOL deployment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.artefacts import Artefacts, Given
from hushstream.engine.declare.declaration import Erasure, Fact, Kind, Note, Result, System, Words, names_user
from hushstream.engine.declare.requests import BadContext, RequestRefused
from hushstream.engine.declare.role import answering_role, model_gauges, publishing_role, ringed, spending_gauges
from hushstream.engine.system import Priced
from hushstream.features.checks import FeatureError
from hushstream.features.schema import FeatureSchema
from hushstream.systems.pdol import plan
from hushstream.systems.pdol.aggregator import AGGREGATOR_OUTCOMES, NODE_OUTCOMES, REASONS, AggregatorMachine
from hushstream.systems.pdol.configuration import PdolConfig
from hushstream.systems.pdol.guarantee import EDGE_ZONE, SERVER_ZONE, TOPICS, PdolSystem, priced
from hushstream.systems.pdol.nodes.home import HomeMachine


class RecordRules(NamedTuple):
    """Rules of records, besides the bounds of `hushstream.systems.pdol.algorithm.rows.quantise`.

    Attributes:
        nodes: how many there are.
        dimension: coordinates of a record.
        features: the declared features, of which a record gives the values by name; None if records are coordinates.
    """

    nodes: int
    dimension: int
    features: FeatureSchema | None = None

    def coordinates_of(self, values: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The coordinates that are not 0 of a record's values, by the names of features; of L2 norm 1.

        The first coordinate is constant, and the cells of all features follow.

        Raises:
            BadContext: records are coordinates in this deployment; or a name is not declared, or a value has another
                type.
        """
        if self.features is None:
            raise BadContext(f"record: expected indices and values of {self.dimension} coordinates, got names")
        try:
            row = self.features.encode(values).row
        except FeatureError as error:
            raise BadContext(f"record: {error}; it was not sent") from None
        blocks, dense = self.features.blocks(self.features.read(row)), np.zeros(self.dimension)
        dense[0] = 1.0
        np.add.at(dense[1:], blocks.cells[0], blocks.values[0])
        indices = np.flatnonzero(dense)
        return indices, dense[indices] / np.sqrt(np.sum(dense * dense))

    def check_node(self, node: int) -> None:
        """Refuse a node that the deployment does not have.

        Raises:
            RequestRefused: there is no such node.
        """
        if not 0 <= node < self.nodes:
            raise RequestRefused(f"node: expected one of {self.nodes}, from 0, got {node}")


def _node_gauges(machine: HomeMachine, now_seconds: float) -> Mapping[str, float]:
    spent = spending_gauges("record", machine, now_seconds)
    return {**spent, **model_gauges(machine.sharing.version, machine.readers[0].published_ms, now_seconds)}


NODE = answering_role(
    "node",
    EDGE_ZONE,
    ringed(HomeMachine),
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

ROLES = (NODE, AGGREGATOR)

NAME = "pdol"


def declare(core: PdolSystem) -> System:
    """A deployment."""
    config = core.config
    return System(
        core=core,
        roles=ROLES,
        topics=TOPICS,
        erasure=_erasure(core),
        words=_words(config),
        facts={"nodes": config.nodes, "homes": core.counts["learner"], "dimension": config.records.dimension},
        requests=RecordRules(config.nodes, config.records.dimension, config.records.declared),
    )


def _prepare(config: PdolConfig, given: Given) -> Mapping[str, bytes]:
    """Refuse an invalid deployment.

    There are no files to make, because counters follow from the configuration.

    Raises:
        ConfigurationError: see `PdolSystem.of`.
    """
    PdolSystem.of(config)
    return {}


def _assemble(config: PdolConfig, artefacts: Artefacts) -> System:
    return declare(PdolSystem.of(config, artefacts.public_dataset is not None).derived_from(artefacts.tainted))


def _priced(config: PdolConfig, artefacts: Artefacts) -> Priced:
    return priced(config)


def _check(config: PdolConfig) -> None:
    PdolSystem.of(config)


def _expected(config: PdolConfig) -> plan.SharingGain | None:
    """The gain for the number of records that the counters are sized for; None without noise."""
    if config.sharing.counter == "exact":
        return None
    slots = sum(config.slots_of(domain) for domain in range(config.domains)) * config.sharing.horizon
    return plan.sharing_gain(config, slots / config.nodes)


def _facts(config: PdolConfig, artefacts: Artefacts) -> Sequence[Fact]:
    """When sharing pays, for the page of the guarantee."""
    found = _expected(config)
    if found is None:
        return ()
    crossing = -1.0 if found.crossing is None else found.crossing
    return (
        Fact("crossing_records", crossing, "\n".join(found.sentences)),
        Fact(
            "share_of_information",
            found.gain,
            "Both figures suppose that all nodes hold records of one kind; the number from which sharing pays is right"
            " within a factor of four.",
        ),
    )


def _notes(config: PdolConfig) -> Sequence[Note]:
    found = _expected(config)
    if found is None:
        return ()
    verdict, premise, *_ = found.sentences
    if found.beats_alone is False:
        return (Note(verdict, "useless"),)
    return () if found.beats_alone else (Note(f"{verdict} {premise}" if found.lead is None else verdict),)


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
            "what was predicted for them, by event id: in the predictions journal, which names no user, until it is "
            "trimmed; an event id should not name one either",
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
    keys={"budget.lift": None},
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
    study="hushstream.replay.studies.pdol.audits:STUDY",
)
