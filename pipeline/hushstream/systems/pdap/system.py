"""The declaration of P-DAP for the catalogue, and of its deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import (
    RECOMMENDATIONS,
    Erasure,
    Fact,
    Kind,
    ModelView,
    System,
    Words,
    names_user,
)
from hushstream.engine.declare.outcomes import OUTCOMES, Outcome
from hushstream.engine.declare.role import (
    RoleKeys,
    answering_role,
    model_gauges,
    publishing_role,
    releasing_role,
    roles_of,
    topics_of,
)
from hushstream.engine.declare.topics import EVENTS_STAY
from hushstream.engine.system import Priced
from hushstream.feedback.join import JOIN_OUTCOMES
from hushstream.privacy.amounts import count_text
from hushstream.systems.pdap import plan
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.counter import BlockCounterMachine, overlaps
from hushstream.systems.pdap.deployment import (
    ARM_CHANGED,
    BEYOND_HORIZON,
    NAME,
    PdapRefusal,
    PdapSystem,
    require_publishable,
)
from hushstream.systems.pdap.edge import PdapLearnerMachine
from hushstream.systems.pdap.model_report import change_of_tickets, read_tickets
from hushstream.systems.pdap.promise import COUNTER_ZONE, EDGE_ZONE, SERVER_ZONE, TOPICS, declared, priced
from hushstream.systems.pdap.server import PdapAggregatorMachine


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
    # Whether the application showed another arm than a dark visit's says something of that arm.
    outcomes={**OUTCOMES, **JOIN_OUTCOMES, Outcome.NOT_SHOWN: "zone-private"},
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

NOT_ANEW = (
    "visits that the lost journal answered would be decided anew, and what those earned that followed from exact "
    "rewards might be released"
)
"""Why the journal of a learner on trial is never given up."""

LEARNER_OF_ITEMS = replace(LEARNER, broadcasts=("models", "items"))
"""The learner if items have names: it follows its vendor's catalogue."""

ROLES = (LEARNER, LEARNER_OF_ITEMS, COUNTER, AGGREGATOR)
"""All roles that a deployment may have."""


_TRUST = {
    "serving": "central, at the counter; hosted: each vendor's learner workers see the rewards of its own users in "
    "clear, then the one trusted counter those of all vendors; other vendors and everybody else see noised blocks",
    "home": "central, at each vendor's counter; hosted: each vendor's learner workers, then its counter, see the "
    "rewards of its own users in clear; other vendors and everybody else see noised blocks",
}


def declare(core: PdapSystem) -> System:
    """A deployment."""
    config = core.config
    vendors = tuple(core.homes)
    home, named = config.release.placement == "home", config.named_items
    topics = tuple(declared(home, named))
    learner = LEARNER_OF_ITEMS if named else LEARNER
    learner = replace(learner, irreplaceable=NOT_ANEW) if config.on_trial else learner
    roles = (learner, replace(COUNTER, each=home), AGGREGATOR)
    return System(
        core=core,
        roles=roles_of(roles, topics, vendors),
        topics=topics_of(topics, vendors),
        parties=vendors,
        erasure=ERASURE,
        words=_words(config),
        facts={"vendors": len(config.vendors), "arms": config.arms, "least block": config.least_counts[0]},
        requests=core.requests,
        models=ModelView(("models",), partial(read_tickets, core), change_of_tickets),
    )


def _assemble(config: PdapConfig, artefacts: Artefacts) -> System:
    return declare(PdapSystem.of(config, artefacts.public_dataset is not None).derived_from(artefacts.tainted))


def _priced(config: PdapConfig, artefacts: Artefacts) -> Priced:
    return priced(config)


def _words(config: PdapConfig) -> Words:
    return Words(
        trust=_TRUST[config.release.placement],
        erasure="hushstream forget drops the outcomes that are still awaited; the user's records go with their topics' "
        "retention, what they were shown stays in the journal of decisions, by event id, until it is trimmed; "
        "outcomes that a counter has taken name nobody and stay, under noise",
        result=RECOMMENDATIONS,
        example="Ann clicked on the film shown to them at ten past nine",
    )


ERASURE = Erasure(
    stays=(
        "what counters have taken of the user's rewards: sums by cell and arm that name nobody, released with noise or "
        "waiting to be; the guarantee covers them",
        "at a vendor on trial, sums of its users' exact rewards by cell and item, which name nobody and stay there",
        "that contexts came to a cell, how many outcomes each block has, and forwards: by opaque names, all public",
        "no allowance is refilled: each reward is counted once",
        EVENTS_STAY,
    ),
    waits=(
        "the user's name in the learner's data directory: until the next snapshot; sealed on state-learner: five days",
    ),
    names=names_user,
)


def _facts(config: PdapConfig, artefacts: Artefacts) -> Sequence[Fact]:
    """Facts about windows: how many outcomes they need, and when the first one closes."""
    found = plan.block_figures(config, config.schedule.first * config.counters)
    seconds = config.release.seconds
    sooner = "" if seconds is None else f", or {seconds:g} s after the first of them"
    first = f"the first model after {count_text(found.first_model, 'outcome', ',')}{sooner}"
    return (
        Fact("least_block", found.least, f"Blocks of {count_text(found.least, 'outcome', ',')} at least; {first}."),
    )


KIND = Kind(
    name=NAME,
    summary="vendors recommend one another's items; what they share is noised blocks of disjoint rewards",
    config=PdapConfig,
    unit="reward",
    keys={"partitions.shuffler": "partitions.counter", "budget.lift": None},
    topics=TOPICS,
    roles=ROLES,
    assemble=_assemble,
    priced=_priced,
    check=require_publishable,
    facts=_facts,
    notes=plan.warnings,
    plan=lambda config, artefacts, audience: plan.plan(config, audience),
    study="hushstream.replay.studies.pdap.audits:STUDY",
)
