"""The declaration of BGTplanner for the catalogue, and of its deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import Erasure, Fact, Kind, System, Words, names_user
from hushstream.engine.declare.gauges import model_gauges
from hushstream.engine.declare.result import Result
from hushstream.engine.declare.role import answering_role, keyed, publishing_role, releasing_role, ringed
from hushstream.engine.system import Priced
from hushstream.systems.bgt import artefacts as files
from hushstream.systems.bgt import plan
from hushstream.systems.bgt.configuration import KEYS, BgtConfig
from hushstream.systems.bgt.deployment import BgtSystem, require_publishable
from hushstream.systems.bgt.edge.rater import RaterMachine
from hushstream.systems.bgt.price.advice import sizes
from hushstream.systems.bgt.price.budget import priced
from hushstream.systems.bgt.reasons import AGGREGATOR_OUTCOMES, COLLECTOR_OUTCOMES, RATER_OUTCOMES, REASONS
from hushstream.systems.bgt.server.machine import BgtAggregatorMachine
from hushstream.systems.bgt.shuffler.collector import CollectorMachine
from hushstream.systems.bgt.slots import slot_bytes
from hushstream.systems.bgt.topics import EDGE_ZONE, SERVER_ZONE, SHUFFLER_ZONE, TOPICS


def _rater_gauges(machine: RaterMachine, now_seconds: float) -> Mapping[str, float]:
    return model_gauges(machine.received.version, machine.received.reader.published_ms, now_seconds)


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

ROLES = (RATER, COLLECTOR, AGGREGATOR)


NAME = "bgt"


def declare(core: BgtSystem) -> System:
    """A deployment."""
    config = core.config
    return System(
        core=core,
        roles=ROLES,
        topics=TOPICS,
        erasure=ERASURE,
        words=WORDS,
        facts={"items": config.items, "features": config.features, "bytes of a slot": slot_bytes(config)},
        requests=config,
        devices={"updates": "Write", "models": "Read", "rounds": "Read"},
    )


def _assemble(config: BgtConfig, artefacts: Artefacts) -> System:
    return declare(files.assemble(config, artefacts))


def _priced(config: BgtConfig, artefacts: Artefacts) -> Priced:
    return priced(config)


def _facts(config: BgtConfig, artefacts: Artefacts) -> Sequence[Fact]:
    """The numbers of users from which on the deployment helps."""
    if config.release.noise == "exact":
        return ()
    found = sizes(config)
    least = -1.0 if found.biases is None else found.biases
    biases, factors = found.as_text().splitlines()
    return (Fact("users_to_gain", least, biases), Fact("users_for_factors", found.factors, factors))


def _notes(config: BgtConfig) -> Sequence[str]:
    return () if config.release.noise == "exact" else sizes(config).as_text().splitlines()


WORDS = Words(
    trust="central, at the collector; hosted: the operator's rater workers see ratings in clear and make the slots "
    "(where users' devices make them, they see neither), then the one trusted collector sees every slot without a "
    "name; everybody after it sees noised sums",
    erasure="hushstream forget drops the user's ratings: their slots are null from then on; their records go with "
    "their topic's retention; slots that were summed name nobody and stay, under noise",
    result=Result(
        data="ratings of items by users, and predictions of their ratings",
        what="one model of items' biases and factors; what a user is told follows from it and from their own ratings",
        product="recommendation model from a few rounds of aggregation",
        release="interactive to the operator's raters, at most three releases; published topics",
    ),
    example="Ann rated a film that hardly anybody else has seen",
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

KIND = Kind(
    name=NAME,
    summary="users' ratings stay with them; three noised rounds of padded slots make one model of items",
    config=BgtConfig,
    unit="user",
    keys=KEYS,
    topics=TOPICS,
    roles=ROLES,
    artefacts=(files.FEATURES,),
    inputs=(files.TABLE,),
    prepare=files.prepare,
    assemble=_assemble,
    priced=_priced,
    check=require_publishable,
    facts=_facts,
    notes=_notes,
    plan=lambda config, artefacts, audience: plan.plan(config, audience),
    study="hushstream.replay.studies.bgt.study:STUDY",
)
