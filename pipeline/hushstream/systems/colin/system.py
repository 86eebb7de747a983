"""The declaration of collaborative bandits for the catalogue, and of their deployments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import (
    RECOMMENDATIONS,
    Erasure,
    Fact,
    Kind,
    Note,
    System,
    Words,
    exploration_facts,
    names_user,
)
from hushstream.engine.declare.outcomes import OUTCOMES, Outcome
from hushstream.engine.declare.role import (
    Role,
    answering_role,
    keyed,
    model_gauges,
    publishing_role,
    releasing_role,
    ringed,
    spending_gauges,
)
from hushstream.engine.declare.topics import EVENTS_STAY
from hushstream.engine.system import Priced
from hushstream.feedback.join import JOIN_OUTCOMES
from hushstream.privacy.amounts import count_text
from hushstream.systems.colin import plan
from hushstream.systems.colin.configuration import CollaborativeConfig
from hushstream.systems.colin.counter import CounterMachine
from hushstream.systems.colin.deployment import (
    GRAPH,
    NAME,
    RELATION,
    USERS,
    CollaborativeSystem,
    assemble,
    prepare,
    read_relation,
)
from hushstream.systems.colin.edge import CollaborativeLearnerMachine
from hushstream.systems.colin.release import COUNTER_ZONE, EDGE_ZONE, REWARDS, SERVER_ZONE, TOPICS, priced, topics_of
from hushstream.systems.colin.server import CollaborativeAggregatorMachine


def _learner_gauges(machine: CollaborativeLearnerMachine, now_seconds: float) -> Mapping[str, float]:
    spent = spending_gauges("reward", machine, now_seconds) if machine.draws_noise else {}
    return {**spent, **model_gauges(machine.shared.version, machine.models[0].published_ms, now_seconds)}


LEARNER = answering_role(
    "learner",
    EDGE_ZONE,
    keyed(CollaborativeLearnerMachine),
    inputs=("contexts", "clicks"),
    journal="decisions",
    writes=("rewards",),
    marks="marks-edge",
    homes="learner",
    gauges=_learner_gauges,
    scope_classes=("reward",),
    # Whether the application showed another arm than a dark visit's says something of that arm.
    outcomes={**OUTCOMES, **JOIN_OUTCOMES, Outcome.NOT_SHOWN: "zone-private"},
)
"""The learner with a trusted counter, which gets rows in clear."""

NOISING_LEARNER = replace(LEARNER, writes=("releases", "ledger", "dead-letters-edge"))
"""The learner without a trusted counter: it adds the noise."""

# An epoch that adds new noise to all earlier rewards is charged again for each of them.
COUNTER = releasing_role(
    "counter",
    COUNTER_ZONE,
    ringed(CounterMachine),
    inputs=("rewards",),
    journal="journal-counter",
    writes=("releases", "ledger"),
    homes="counter",
    charges="reward",
    private_work=False,
    outcomes=OUTCOMES,
)

AGGREGATOR = publishing_role(SERVER_ZONE, CollaborativeAggregatorMachine, outcomes=OUTCOMES)

LEARNERS_OF_ITEMS = tuple(replace(one, broadcasts=("models", "items")) for one in (LEARNER, NOISING_LEARNER))
"""Both learners if items have names: they follow the catalogue."""

ROLES = (LEARNER, NOISING_LEARNER, *LEARNERS_OF_ITEMS, COUNTER, AGGREGATOR)
"""All roles that a deployment may have."""


def roles_of(counted: bool, named: bool) -> tuple[Role, ...]:
    """The roles of a deployment, with or without a trusted counter, and with or without items by name."""
    passing, noising = LEARNERS_OF_ITEMS if named else (LEARNER, NOISING_LEARNER)
    return (passing, COUNTER, AGGREGATOR) if counted else (noising, AGGREGATOR)


_TRUST = {
    "learner": "central, at the learners; hosted: the operator's learner workers see rewards in clear; everybody after "
    "them sees noised values",
    "server": "central, at the counter; hosted: the operator's learner workers, then the trusted counter, see rewards "
    "in clear; everybody after them sees noised sums",
}


def declare(core: CollaborativeSystem) -> System:
    """A deployment."""
    return System(
        core=core,
        roles=roles_of(core.counted, core.config.named_items),
        topics=topics_of(core.counted, core.config.named_items),
        erasure=_erasure(core),
        words=_words(core.config),
        facts={"users": core.nodes, "algorithm": core.config.learner.algorithm, "ridge": round(core.ridge, 6)},
        requests=core.requests,
    )


def _assemble(config: CollaborativeConfig, artefacts: Artefacts) -> System:
    return declare(assemble(config, artefacts).derived_from(artefacts.tainted))


def _nodes(artefacts: Artefacts) -> int:
    """How many users there are; one while the graph is not there yet."""
    return len(read_relation(artefacts).users) if artefacts.has(RELATION) else 1


def _priced(config: CollaborativeConfig, artefacts: Artefacts) -> Priced:
    return priced(config, _nodes(artefacts))


_ARMS_ARE_PUBLIC = (
    "It changes no guarantee: neighbours differ in one reward, which arm was shown is public, and arms are drawn from "
    "released models, not from rewards."
)
_CLEAN_ARMS_ARE_PUBLIC = (
    "It changes no guarantee: only arms of clean visits are public, and those are drawn from released models."
)


def _facts(config: CollaborativeConfig, artefacts: Artefacts) -> Sequence[Fact]:
    """Lambda of the models, once the graph is there, the mechanism and why, and what exploration means."""
    deviation = math.sqrt(plan.sum_noise(config, config.release.rewards_per_user))
    explores = exploration_facts(
        config.exploration, _CLEAN_ARMS_ARE_PUBLIC if config.learner.clean_share < 1 else _ARMS_ARE_PUBLIC
    )
    chosen = (Fact("noise", deviation, f"Mechanism: {plan.noise_taken(config)}."), *explores)
    if not artefacts.has(RELATION):
        return chosen
    ridge = assemble(config, artefacts).ridge
    text = f"Ridge of the models: {ridge:.6g}, from configuration and graph alone (it costs no privacy)."
    return (Fact("ridge", ridge, text), *chosen)


def _words(config: CollaborativeConfig) -> Words:
    exact = "none: rewards are public data, and their sums are published without noise"
    return Words(
        trust=exact if config.release.mechanism == "exact" else _TRUST[config.release.noise_at],
        erasure="hushstream forget drops the user's state; the user's records go with their topics' retention, what "
        "they were shown stays in the journal of decisions, by event id, until it is trimmed; "
        "what was released stays, and no release names the user again; the erasure "
        "stays known, by the user's number in the public graph",
        example="one certain reward of Ann's was 1 and not 0",
        result=RECOMMENDATIONS,
    )


_DARK_ARMS_STAY = "which arms dark visits showed, by event id, in the journal of decisions until it is trimmed"


def _erasure(core: CollaborativeSystem) -> Erasure:
    exact = core.config.release.mechanism == "exact"
    released = (
        "without noise, as the deployment is on public data" if exact else "with noise; their guarantee covers it"
    )
    holders = "the learner's data directory"
    if core.counted:
        holders = "the counter until it has read what the learner passes on, and in both data directories"
    return Erasure(
        stays=(
            f"the user's running sums as they were released, {released}; no release names them again",
            "which arms' features they were shown, in releases, and their place in the relation graph: both are public",
            "that they were erased, by their number in the graph: the shared model answers them, nothing is learned of "
            "them, and no allowance is refilled",
            *((_DARK_ARMS_STAY,) if core.config.learner.clean_share < 1 else ()),
            EVENTS_STAY,
        ),
        waits=(
            f"their open rows and exact sums in {holders}: until the next snapshot; sealed on state topics: five days",
        ),
        names=partial(_names, core),
        # The learner sends no reward of the user after it has folded the deletion request, so every reward on the topic
        # came before it.
        passed_on=frozenset({REWARDS.name}),
    )


def _names(core: CollaborativeSystem, schema: str, fields: Mapping[str, Any], user: str) -> bool:
    if schema == "Rewards":
        return core.graph.index.get(user) in np.frombuffer(fields["nodes"], "<i4").tolist()
    return names_user(schema, fields, user)


def _notes(config: CollaborativeConfig) -> Sequence[Note]:
    found = () if config.release.mechanism == "exact" else plan.warnings(config)
    if config.release.leaves == config.release.rewards_per_user:
        return found
    return (
        *found,
        Note(
            f"release.horizon: noise is sized for {count_text(config.release.leaves, 'step')} of a user, and "
            f"{config.release.rewards_per_user} of their rewards count at most; leave the horizon out for no more "
            "noise than these need"
        ),
    )


KIND = Kind(
    name=NAME,
    summary="users of a public graph share one model of noised sums: LinUCB, CoLin and GOBLin",
    config=CollaborativeConfig,
    unit="reward",
    keys={"partitions.shuffler": "partitions.counter", "budget.lift": None},
    topics=TOPICS,
    roles=ROLES,
    artefacts=(RELATION,),
    inputs=(GRAPH, USERS),
    facts=_facts,
    prepare=prepare,
    assemble=_assemble,
    priced=_priced,
    resolved=lambda config: {"mechanism": plan.noise_taken(config)},
    notes=_notes,
    plan=lambda config, artefacts, audience: plan.plan(config, _nodes(artefacts), audience),
    study="hushstream.replay.studies.colin.study:STUDY",
)
