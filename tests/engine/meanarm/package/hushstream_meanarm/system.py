"""The declaration: topics, roles, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hushstream.engine.declare import topics
from hushstream.engine.declare.artefacts import Artefacts, Given
from hushstream.engine.declare.declaration import Erasure, Kind, System, Words
from hushstream.engine.declare.gauges import budget_gauges, model_gauges, version_gauges
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.declare.result import Result
from hushstream.engine.declare.role import Role, RoleKeys
from hushstream.schemas.topics import SHORT_MS, PartitionRule, Topic
from hushstream_meanarm.aggregator import MALFORMED as MALFORMED_SUMS
from hushstream_meanarm.aggregator import AggregatorMachine
from hushstream_meanarm.core import COUNTER, EDGE, NAME, SERVER, Meanarm, MeanarmConfig, priced
from hushstream_meanarm.counter import MALFORMED as MALFORMED_SLOT
from hushstream_meanarm.counter import CounterMachine
from hushstream_meanarm.learner import LearnerMachine

_ASKS: dict[str, Any] = {"names_users": True, "tombstones": True, "private_lag": True, "client": "writes"}
_SLOTS: dict[str, Any] = {"names_users": False, "tombstones": False, "private_lag": True}


def _input(name: str, schemas: tuple[str, ...], zone: str, rule: PartitionRule, count: str, **more: Any) -> Topic:
    kept: dict[str, Any] = {"retention_ms": SHORT_MS, "noised": False, "ticks": False, **more}
    return Topic(name=name, schemas=schemas, zone=zone, partition_rule=rule, count=count, **kept)


TOPICS = (
    _input("asks", ("ArmAsk", "ArmClick", "Forget"), EDGE, PartitionRule.USER, "learners", **_ASKS),
    topics.journal("answers", ("ArmAnswers",), EDGE, PartitionRule.HOME, "learners", client="reads"),
    _input("slots", ("ArmSlot",), COUNTER, PartitionRule.TRACK, "tracks", **_SLOTS),
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


def _aggregator(system: Meanarm, track: int, keys: RoleKeys) -> AggregatorMachine:
    return AggregatorMachine(system)


def _learner_gauges(machine: LearnerMachine, now_seconds: float) -> Mapping[str, float]:
    return model_gauges(0, machine.models[0].published_ms, now_seconds)


def _counter_gauges(machine: CounterMachine, now_seconds: float) -> Mapping[str, float]:
    return budget_gauges("reward", machine.spending, machine.refused)


ROLES = (
    Role(
        name="learner",
        zone=EDGE,
        key_zone=EDGE,
        inputs=("asks",),
        journal="answers",
        writes=("slots", "dead-letters-edge"),
        broadcasts=("models",),
        homes="learners",
        make=_learner,
        gauges=_learner_gauges,
        private_work=True,
        outcomes=OUTCOMES,
    ),
    Role(
        name="counter",
        zone=COUNTER,
        key_zone=COUNTER,
        inputs=("slots",),
        journal="journal-counter",
        writes=("sums", "ledger", "dead-letters-counter"),
        marks="marks-counter",
        homes="tracks",
        make=_counter,
        gauges=_counter_gauges,
        scope_classes=("reward",),
        private_work=True,
        outcomes=OUTCOMES,
        reasons=(MALFORMED_SLOT,),
    ),
    Role(
        name="aggregator",
        zone=SERVER,
        key_zone=None,
        inputs=("sums",),
        journal="models",
        writes=("dead-letters-server",),
        homes="tracks",
        make=_aggregator,
        gauges=version_gauges,
        private_work=False,
        outcomes=OUTCOMES,
        reasons=(MALFORMED_SUMS,),
    ),
)


def _prepare(config: MeanarmConfig, given: Given) -> Mapping[str, bytes]:
    return {}


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
    prepare=_prepare,
    assemble=_assemble,
    priced=lambda config, artefacts: priced(config),
)
