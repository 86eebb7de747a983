"""The declaration: topics, roles, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine.declare import topics
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import Erasure, Kind, System, Words
from hushstream.engine.declare.gauges import model_gauges
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.result import Result
from hushstream.engine.declare.role import RoleKeys, answering_role, publishing_role, releasing_role
from hushstream.schemas.topics import PartitionRule
from hushstream_meanarm.aggregator import MALFORMED as MALFORMED_SUMS
from hushstream_meanarm.aggregator import AggregatorMachine
from hushstream_meanarm.core import COUNTER, EDGE, NAME, SERVER, Meanarm, MeanarmConfig, priced
from hushstream_meanarm.counter import MALFORMED as MALFORMED_SLOT
from hushstream_meanarm.counter import CounterMachine
from hushstream_meanarm.learner import LearnerMachine

TOPICS = (
    topics.asked("asks", ("ArmAsk", "ArmClick", "Forget"), EDGE, "learners", ticks=False, private_lag=True),
    topics.journal("answers", ("ArmAnswers",), EDGE, PartitionRule.HOME, "learners", client="reads"),
    topics.unnamed(
        "slots", ("ArmSlot",), COUNTER, PartitionRule.TRACK, "tracks", noised=False, ticks=False, private_lag=True
    ),
    topics.journal("journal-counter", ("ArmWindow",), COUNTER, PartitionRule.HOME, "tracks"),
    topics.releases("sums", "ArmSums"),
    topics.account("ledger", "LedgerEntry", "tracks"),
    topics.models("ArmMeans"),
    topics.marks(COUNTER, "tracks"),
    topics.dead_letters(EDGE, "learners"),
    topics.dead_letters(COUNTER, "tracks"),
    topics.dead_letters(SERVER, "tracks"),
)


def _learner(system: Meanarm, home: int, keys: RoleKeys) -> LearnerMachine:
    return LearnerMachine(system, home, keys.own)


def _counter(system: Meanarm, home: int, keys: RoleKeys) -> CounterMachine:
    return CounterMachine(system, keys.own, keys.ring)


def _learner_gauges(machine: LearnerMachine, now_seconds: float) -> Mapping[str, float]:
    return model_gauges(0, machine.models[0].published_ms, now_seconds)


ROLES = (
    answering_role(
        "learner",
        EDGE,
        _learner,
        inputs=("asks",),
        journal="answers",
        writes=("slots",),
        homes="learners",
        gauges=_learner_gauges,
        outcomes=OUTCOMES,
    ),
    releasing_role(
        "counter",
        COUNTER,
        _counter,
        inputs=("slots",),
        journal="journal-counter",
        writes=("sums", "ledger"),
        homes="tracks",
        charges="reward",
        private_work=True,
        outcomes=OUTCOMES,
        reasons=(MALFORMED_SLOT,),
    ),
    publishing_role(SERVER, AggregatorMachine, inputs=("sums",), outcomes=OUTCOMES, reasons=(MALFORMED_SUMS,)),
)


def _assemble(config: MeanarmConfig, artefacts: Artefacts) -> System:
    core = Meanarm.of(config, artefacts.public_dataset is not None)
    return System(
        core=core,
        roles=ROLES,
        topics=TOPICS,
        erasure=Erasure(
            stays=(
                "sums that their rewards are in, with noise",
                "how many rewards counted, under a digest of their name",
            ),
            waits=("rewards in an open window, which name nobody: until it closes",),
            names=lambda schema, fields, user: bool(fields.get("user") == user),
        ),
        words=Words(
            trust="central: the operator's learner and counter workers see rewards in clear",
            erasure="hushstream forget drops the events that wait for a click; what was released stays, noised",
            example="Ann clicked what she was shown",
            result=Result(
                data="rewards of users",
                what="the mean reward of each arm",
                product="running means of arms",
                release="repeated; published topics",
            ),
        ),
        facts={},
    )


KIND = Kind(
    name=NAME,
    summary="the arm with the best noised mean reward",
    config=MeanarmConfig,
    topics=TOPICS,
    roles=ROLES,
    prepare=lambda config, given: {},
    assemble=_assemble,
    priced=lambda config, artefacts: priced(config),
)
