"""The declaration of BGTplanner for the catalogue, and of its deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import Erasure, Fact, Kind, Note, Result, System, Words, names_user
from hushstream.engine.declare.role import (
    RoleKeys,
    answering_role,
    keyed,
    model_gauges,
    publishing_role,
    releasing_role,
    ringed,
)
from hushstream.engine.devices.published import AGREEMENT, SEALING, SEALING_ZONE, SIGNING, keys_published, signing_role
from hushstream.engine.system import Priced
from hushstream.systems.bgt import artefacts as files
from hushstream.systems.bgt import plan
from hushstream.systems.bgt.artefacts import BgtSystem, require_publishable
from hushstream.systems.bgt.configuration import KEYS, BgtConfig
from hushstream.systems.bgt.device_service import RatingDeviceService, device_facts
from hushstream.systems.bgt.edge.rater import RaterMachine
from hushstream.systems.bgt.guarantee import priced
from hushstream.systems.bgt.server import BgtAggregatorMachine
from hushstream.systems.bgt.shuffler import CollectorMachine
from hushstream.systems.bgt.slots import slot_bytes
from hushstream.systems.bgt.topics import (
    AGGREGATOR_OUTCOMES,
    COLLECTOR_OUTCOMES,
    EDGE_ZONE,
    RATER_OUTCOMES,
    REASONS,
    SERVER_ZONE,
    SHUFFLER_ZONE,
    STATEMENTS,
    TOPICS,
    topics_of,
)


def _rater_gauges(machine: RaterMachine, now_seconds: float) -> Mapping[str, float]:
    return model_gauges(machine.received.version, machine.received.reader.published_ms, now_seconds)


def _opening_collector(system: BgtSystem, home: int, keys: RoleKeys) -> CollectorMachine:
    return CollectorMachine(system, home, keys.own, keys.ring, keys.kept(SEALING_ZONE))


RATER = answering_role(
    "rater",
    EDGE_ZONE,
    keyed(RaterMachine),
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
    ringed(CollectorMachine),
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

OPENING_COLLECTOR = replace(COLLECTOR, make=_opening_collector, further_key_zones=(SEALING_ZONE,))
"""The collector where devices make slots: it opens them with a key of its own."""

SIGNING_AGGREGATOR = signing_role(AGGREGATOR, BgtAggregatorMachine)
"""The aggregator where devices take models: it signs them with a key of its own."""

ROLES = (RATER, COLLECTOR, OPENING_COLLECTOR, AGGREGATOR, SIGNING_AGGREGATOR)
"""All roles that a deployment may have."""

_SLOT_CLIENT: Mapping[str, Literal["Read", "Write"]] = {"updates": "Write", "models": "Read", "rounds": "Read"}
"""The rights of a client that hands in slots that no rater made (`hushstream.client.slots`)."""


NAME = "bgt"


def declare(core: BgtSystem) -> System:
    """The declaration of one deployment."""
    config = core.config
    return System(
        core=core,
        roles=(OPENING_COLLECTOR, SIGNING_AGGREGATOR) if config.devices else (RATER, COLLECTOR, AGGREGATOR),
        topics=topics_of(config.devices),
        erasure=EDGE_ERASURE if config.devices else ERASURE,
        words=EDGE_WORDS if config.devices else WORDS,
        facts={"items": config.items, "features": config.features, "bytes of a slot": slot_bytes(config)},
        requests=None if config.devices else config,
        devices={**_SLOT_CLIENT, STATEMENTS.name: "Read"} if config.devices else _SLOT_CLIENT,
        device_service=(lambda: RatingDeviceService(core, files.agreement_of(core))) if config.devices else None,
    )


def _assemble(config: BgtConfig, artefacts: Artefacts) -> System:
    return declare(files.assemble(config, artefacts).derived_from(artefacts.tainted))


def _priced(config: BgtConfig, artefacts: Artefacts) -> Priced:
    return priced(config)


def _facts(config: BgtConfig, artefacts: Artefacts) -> Sequence[Fact]:
    """The numbers of users from which on the deployment helps, and the facts about devices."""
    if config.release.noise == "exact":
        return ()
    about_devices = device_facts(config) if config.devices else ()
    found = plan.enough_users(config)
    least = -1.0 if found.biases is None else found.biases
    biases, factors = found.sentences
    return (Fact("users_to_gain", least, biases), Fact("users_for_factors", found.factors, factors), *about_devices)


def _notes(config: BgtConfig) -> Sequence[Note]:
    if config.release.noise == "exact":
        return ()
    found = plan.enough_users(config)
    biases, factors = found.sentences
    return Note(biases, "useless" if found.biases is None else "warning"), Note(factors)


WORDS = Words(
    trust="central, at the collector; hosted: the operator's rater workers see ratings in clear and make the slots "
    "(where users' devices make the slots, the workers see neither), then the one trusted collector sees every slot "
    "without a name; everybody after it sees noised sums",
    erasure="hushstream forget drops the user's ratings: the user's slots are null from then on; records of ratings go "
    "with their topic's retention; slots that were summed name nobody and stay, under noise",
    result=Result(
        data="ratings of items by users, and predictions of their ratings",
        what="one model of items' biases and factors; a user's predictions follow from it and from their own ratings",
        product="recommendation model from a few rounds of aggregation",
        release="interactive to the operator's raters, at most three releases; published topics",
    ),
    example="Ann rated a film that hardly anybody else has seen",
)


EDGE_WORDS = replace(
    WORDS,
    trust="central, at the collector; edge: users' devices make the slots and seal them, and the one trusted collector "
    "opens every slot without a name; everybody after it sees noised sums; no topic of the deployment holds ratings",
    erasure="the application drops the user's device, which holds all of the user's state; slots name no user and go "
    "with their topic's retention; slots that were summed stay, under noise",
)


ERASURE = Erasure(
    stays=(
        "slots of rounds that ended before: in sums, released with noise; the guarantee covers them",
        "that somebody takes part, under a tag, with how many rounds they answered: their further slots are null, and "
        "no allowance is refilled",
        "event ids of their questions: in the predictions journal, which names no user, and beside their tag among the "
        "last 50,000 of the rater; an event id should not name one either",
    ),
    waits=(
        "the user's ratings in the rater's data directory, under a tag: until the next snapshot; sealed on "
        "state-rater: five days",
    ),
    names=names_user,
)

EDGE_ERASURE = replace(ERASURE, stays=ERASURE.stays[:1], waits=())

KIND = Kind(
    name=NAME,
    summary="users' ratings stay with them; three noised rounds of fixed-size reports make one model of items",
    config=BgtConfig,
    unit="user",
    keys=KEYS,
    topics=TOPICS,
    roles=ROLES,
    artefacts=(files.FEATURES, SEALING, SIGNING, AGREEMENT),
    inputs=(files.TABLE,),
    prepare=files.prepare,
    assemble=_assemble,
    priced=_priced,
    check=require_publishable,
    facts=_facts,
    notes=_notes,
    plan=lambda config, artefacts, audience: plan.plan(config, audience),
    published_keys=keys_published(None),
    study="hushstream.replay.studies.bgt.study:STUDY",
)
