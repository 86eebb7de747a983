"""The declaration: topics, the role, and what is said of them."""

from __future__ import annotations

from functools import partial

from hushstream.engine.configuration import config_digest
from hushstream.engine.declare import topics
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.declaration import Erasure, Kind, Result, System, Words, names_user
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.role import answering_role, keyed, spending_gauges
from hushstream.schemas.topics import PartitionRule
from hushstream_rrarm.core import EDGE, NAME, Rrarm, RrarmConfig, priced
from hushstream_rrarm.learner import LearnerMachine

TOPICS = (
    topics.requests("asks", ("RrAsk", "RrClick", "Forget"), EDGE, "learners", ticks=False, private_lag=True),
    topics.journal("answers", ("RrAnswers",), EDGE, PartitionRule.HOME, "learners", client="reads"),
    topics.published("reports", "RrReport", kept_ms=None, noised=True, rule=PartitionRule.HOME, count="learners"),
    topics.account("ledger", "LedgerEntry", "learners"),
    topics.marks(EDGE, "learners"),
    topics.dead_letters(EDGE, "learners"),
)

ROLES = (
    answering_role(
        "learner",
        EDGE,
        keyed(LearnerMachine),
        inputs=("asks",),
        broadcasts=(),
        journal="answers",
        writes=("reports", "ledger"),
        marks=f"marks-{EDGE}",
        homes="learners",
        gauges=partial(spending_gauges, "reward"),
        scope_classes=("reward",),
        outcomes=OUTCOMES,
    ),
)


def _assemble(config: RrarmConfig, artefacts: Artefacts) -> System:
    public = artefacts.public_dataset is not None
    return System(
        core=Rrarm(config, config_digest(config, public), priced(config), public_dataset=public),
        roles=ROLES,
        topics=TOPICS,
        erasure=Erasure(
            stays=("responses, which name nobody", "how many rewards counted, under a digest of their name"),
            waits=(),
            names=names_user,
        ),
        words=Words(
            trust="central: the operator's learner workers see rewards in clear",
            erasure="hushstream forget drops the events that wait for a click; what was released stays, noised",
            example="Ann clicked what she was shown",
            result=Result(
                data="rewards of users",
                what="a response to each reward",
                product="the arm that is shown",
                release="repeated; published topics",
            ),
        ),
    )


KIND = Kind(
    name=NAME,
    summary="the arm whose randomised responses are best",
    config=RrarmConfig,
    unit="reward",
    topics=TOPICS,
    roles=ROLES,
    assemble=_assemble,
    priced=lambda config, artefacts: priced(config),
)
