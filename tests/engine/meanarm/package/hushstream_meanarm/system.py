"""The declaration: topics, roles, and what is said of them."""

from __future__ import annotations

from hushstream.engine.configuration import config_digest
from hushstream.engine.declare import topics
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import Erasure, Kind, Result, System, Words, names_user
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.role import answering_role, keyed, publishing_role, releasing_role, ringed
from hushstream.schemas.topics import PartitionRule
from hushstream_meanarm.aggregator import AggregatorMachine
from hushstream_meanarm.core import COUNTER, EDGE, NAME, SERVER, Meanarm, MeanarmConfig, priced
from hushstream_meanarm.counter import CounterMachine
from hushstream_meanarm.learner import LearnerMachine

TOPICS = (
    topics.requests("asks", ("ArmAsk", "ArmClick", "Forget"), EDGE, "learners", ticks=False, private_lag=True),
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


ROLES = (
    answering_role(
        "learner",
        EDGE,
        keyed(LearnerMachine),
        inputs=("asks",),
        journal="answers",
        writes=("slots",),
        homes="learners",
        outcomes=OUTCOMES,
    ),
    releasing_role(
        "counter",
        COUNTER,
        ringed(CounterMachine),
        inputs=("slots",),
        journal="journal-counter",
        writes=("sums", "ledger"),
        homes="tracks",
        charges="reward",
        private_work=True,
        outcomes=OUTCOMES,
    ),
    publishing_role(SERVER, AggregatorMachine, inputs=("sums",), outcomes=OUTCOMES),
)


def _assemble(config: MeanarmConfig, artefacts: Artefacts) -> System:
    public = artefacts.public_dataset is not None
    return System(
        core=Meanarm(config, config_digest(config, public), priced(config), public_dataset=public),
        roles=ROLES,
        topics=TOPICS,
        erasure=Erasure(
            stays=("sums with their rewards, noised", "how many rewards counted, under a digest of their name"),
            waits=("rewards in an open window, which name nobody: until it closes",),
            names=names_user,
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
    )


KIND = Kind(
    name=NAME,
    summary="the arm with the best noised mean reward",
    config=MeanarmConfig,
    unit="reward",
    topics=TOPICS,
    roles=ROLES,
    assemble=_assemble,
    priced=lambda config, artefacts: priced(config),
)
