"""A journal may change its schema generation and change back: what it released is recomputed by whoever reads it.

The newer release is this one with one more field in every record that a role writes, which it fills in.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines, role_work
from hushstream.client.client import Client
from hushstream.engine.declare.declaration import System
from hushstream.engine.journal.chain import NewerJournal
from hushstream.engine.learner.batch import Batch
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog
from hushstream.schemas import codec, context_columns
from hushstream.schemas.catalogue import CATALOGUE, SchemaVersion, make_schema_version
from hushstream.schemas.codec import Codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import CollaborativeConfig, ContinualConfig, FeatureConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    P2BConfig,
    PartitionConfig,
    ReleaseConfig,
    SlotConfig,
)
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.system import declare as declare_p2b

KEYS = KeySource(seed=7)
DIMENSION, ARMS, PARTITIONS = 3, 4, 2
USERS = [f"u{number}" for number in range(16)]
JOURNALS = ("decisions", "journal-shuffler", "journal-counter", "models")
PLAIN = ("Genesis", "Context", "ContextBatch", "Feedback", "FeedbackBatch", "Forget", "Tick")
"""What applications and operators write, and what is not recomputed."""
FOREIGN = b"noise"
ADDED = {"name": "note", "type": "string", "default": ""}


LATER = codec.NEWEST_GENERATION + 1
"""The schema generation that the newer release brings."""


def grown(name: str) -> SchemaVersion:
    """A record with one more field, in the next schema generation."""
    schema = json.loads(CATALOGUE[name][-1].text)
    *fields, last = schema["fields"]
    return make_schema_version(name, 2, {**schema, "edition": LATER, "fields": [*fields, ADDED, last]})


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Codec:
    """This process is of the newer release."""
    made = Codec({name: v if name in PLAIN else (*v, grown(name)) for name, v in CATALOGUE.items()})

    def encode(name: str, record: Mapping[str, Any], schema_generation: int = 1) -> bytes:
        return made.encode(name, record if name in PLAIN else {**record, "note": "new"}, schema_generation)

    for attribute in ("decode", "narrow", "generation_of"):
        monkeypatch.setattr(codec, attribute, getattr(made, attribute))
    monkeypatch.setattr(codec, "encode", encode)
    monkeypatch.setattr(codec, "NEWEST_GENERATION", made.newest_generation)
    monkeypatch.setattr(context_columns, "decode", made.decode)
    of_batch = Batch.fields
    # A learner compares its fields on replay, so it must fill the new one in itself.
    monkeypatch.setattr(Batch, "fields", lambda *of: {**of_batch(*of), "note": "new"})
    return made


def p2b() -> System:
    config = P2BConfig(
        "shop",
        ARMS,
        ContextConfig(DIMENSION),
        2 * len(USERS),
        encoder=EncoderConfig(codes=4),
        slot=SlotConfig(after_interactions=1, lifetime_slots=8, settle_seconds=0.0),
        release=ReleaseConfig(window_slots=8),
        partitions=PartitionConfig(learner=PARTITIONS, shuffler=2),
    )
    return declare_p2b(P2BSystem.fitted(config, public_dataset=True))


def related(noise_at: str) -> System:
    release = ContinualConfig(noise_at=noise_at, rows=4, horizon=256, rewards_per_user=64)
    partitions = PartitionConfig(learner=PARTITIONS)
    config = CollaborativeConfig(
        "related", ARMS, features=FeatureConfig(dimension=DIMENSION), release=release, partitions=partitions
    )
    return declare_colin(CollaborativeSystem.of(config, SocialGraph.of_edges([(USERS[0], USERS[1], 1.0)], USERS)))


SYSTEMS: dict[str, Callable[[], System]] = {
    "p2b": p2b,
    "colin": lambda: related("server"),
    "colin-edge": lambda: related("learner"),
}


def play(log: MemoryLog, system: System, schema_generation: int, phase: int) -> None:
    """One phase of a deployment whose workers all start anew and write one generation; something is refused too."""
    driver = DirectDriver(log, all_machines(system, KEYS, schema_generation), bytes(32))
    size = DIMENSION if system.kind == "p2b" else ARMS * DIMENSION

    async def ask(client: Client, user: str) -> None:
        event = f"{user}:{phase}"
        answer = await client.decide(event, user, np.full(size, 1 / size), timeout=30)
        await client.shown(event, user, answer.arm)
        await client.reward(event, user, answer.arm, 1.0)

    async def main() -> None:
        async with Client(DirectEventLog(log, driver, PARTITIONS), schema_generation=schema_generation) as client:
            for topic in ("contexts", "reports", "rewards", "crowds", "releases"):
                log.append(topic, 0, FOREIGN)
            await asyncio.gather(*(ask(client, user) for user in USERS))
            await client.end_phase(phase)

    asyncio.run(main())


def generations_of(log: MemoryLog, newer: Codec) -> dict[str, list[int]]:
    """By topic, the schema generations of the records that a newer release changes."""
    found: dict[str, list[int]] = {}
    for (topic, _), records in log.partitions():
        known = [record.value for record in records if record.value != FOREIGN]
        named = [(newer.decode(value)[0], newer.generation_of(value)) for value in known]
        found.setdefault(topic, []).extend(schema_generation for name, schema_generation in named if name not in PLAIN)
    return {topic: schema_generations for topic, schema_generations in found.items() if schema_generations}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_journal_of_two_generations_is_recomputed_byte_for_byte_by_workers_of_either(name: str, newer: Codec) -> None:
    system, log = SYSTEMS[name](), MemoryLog()
    # The third worker was not raised yet when it took over.
    for phase, schema_generation in enumerate((1, LATER, 1, LATER)):
        play(log, system, schema_generation, phase)
    written = generations_of(log, newer)
    if name != "p2b":
        assert set(written.pop("ledger")) == {1}, "it was all paid with the first release"
    assert {topic: set(schema_generations) for topic, schema_generations in written.items()} == {
        topic: {1, LATER} for topic in written
    }
    assert {"decisions", "models", "dead-letters-edge"} < written.keys()
    found = verify(LogCopy.of(log), system, KEYS)
    before = {source: list(records) for source, records in log.partitions()}
    foreign = [before[one.topic, one.partition][one.offset or 0].value for one in found.findings]
    assert set(foreign) == {FOREIGN}, "nothing else was put there by another writer"
    assert found.totals[Status.EQUAL] + found.totals[Status.REPEATED] + len(foreign) == sum(found.totals.values())
    for schema_generation in (1, LATER):
        driver = DirectDriver(log, all_machines(system, KEYS, schema_generation), bytes(32))
        driver.pump()
        assert [step for step in driver.steps if step.journal is not None or step.releases] == []
    assert {source: list(records) for source, records in log.partitions()} == before


def test_a_journal_record_says_its_generation_and_the_new_field_is_there_from_then_on(newer: Codec) -> None:
    system, log = p2b(), MemoryLog()
    play(log, system, 1, 0)
    play(log, system, LATER, 1)
    for (topic, _), records in log.partitions():
        journal = [newer.decode(record.value)[1] for record in records[1:]] if topic in JOURNALS else []
        assert [fields["note"] for fields in journal] == [
            "new" * (fields["head"]["edition"] == LATER) for fields in journal
        ]


def test_an_older_release_stops_at_a_journal_that_a_newer_one_wrote(newer: Codec, monkeypatch: Any) -> None:
    system, log = p2b(), MemoryLog()
    play(log, system, 1, 0)
    DirectDriver(log, all_machines(system, KEYS, 1), bytes(32)).pump()
    play(log, system, LATER, 1)
    monkeypatch.undo()
    with pytest.raises(NewerJournal, match="a newer release has written here"):
        DirectDriver(log, all_machines(system, KEYS), bytes(32))


def test_a_generation_that_only_the_head_tells_stops_an_older_release_too(monkeypatch: Any) -> None:
    system, log = p2b(), MemoryLog()
    monkeypatch.setattr(codec, "NEWEST_GENERATION", LATER)
    play(log, system, LATER, 0)
    monkeypatch.undo()
    with pytest.raises(NewerJournal, match=f"schema generations up to {LATER - 1}, found schema generation {LATER}"):
        DirectDriver(log, all_machines(system, KEYS), bytes(32))


@pytest.mark.parametrize("schema_generation", [0, codec.NEWEST_GENERATION + 1])
def test_a_generation_that_this_release_does_not_know_is_refused_before_anything_is_written(
    schema_generation: int,
) -> None:
    with pytest.raises(HushstreamError, match=f"schema generation: expected 1 to {codec.NEWEST_GENERATION}"):
        role_work("learner", p2b(), KEYS, schema_generation)
    with pytest.raises(HushstreamError, match=f"got {schema_generation}"):
        Client(
            DirectEventLog(MemoryLog(), DirectDriver(MemoryLog(), (), bytes(32)), 1),
            schema_generation=schema_generation,
        )
