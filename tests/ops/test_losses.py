"""What operators have accepted to lose is shown to whoever asks what the deployment promises, with what it changes.

An embedded broker, or the one whose address HUSHSTREAM_TEST_BOOTSTRAP names.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic, RecordsToDelete
from aiokafka.structs import TopicPartition

from hushstream.agents.recovery.marks import mark_key
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.broker import EmbeddedBroker
from hushstream.engine.declare.declaration import System, role_of
from hushstream.engine.journal.marks import Mark, MarkSeal
from hushstream.engine.journal.notes import FOREIGN, LOST, Note, NoteSeal
from hushstream.ops.connection import Connection
from hushstream.ops.logs.foreign import check, plan
from hushstream.ops.logs.losses import AcceptedLosses, LostInput, LostJournal, accepted_losses
from hushstream.ops.statement import statement_of
from hushstream.privacy.promises.promise import plain

LOST_CONTEXTS = Note(LOST, ("contexts", 1), 5, 9, 1_700_000_000_000, 1_700_000_060_000)
LOST_MODELS = Note(LOST, ("models", 0), 0, 3)
KEYS, NO_KEYS = KeySource(seed=7), KeySource(folder=Path("nowhere"))


class Logs:
    """The topics of a deployment, empty at first."""

    def __init__(self, system: System, connection: Connection, producer: AIOKafkaProducer) -> None:
        self.system, self.connection, self._producer = system, connection, producer

    async def note(self, role: str, home: int, note: Note, keys: KeySource = KEYS) -> None:
        make = role_work(role, self.system, keys).make_machine
        value = NoteSeal(self.system.config.deployment, role, home, make.state_keys()).pack(note)
        await self.put(role_of(self.system, role).journal, home, value)

    async def mark(self, role: str, home: int, mark: Mark) -> None:
        make = role_work(role, self.system, KEYS).make_machine
        value = MarkSeal(self.system.config.deployment, role, home, make.mark_keys()).pack(mark)
        marks = role_of(self.system, role).marks
        assert marks is not None
        await self.put(marks, home, value, mark_key(role, home, mark, "w"))

    async def put(self, topic: str, partition: int, value: bytes, key: bytes | None = None) -> None:
        await self._producer.send_and_wait(self.connection.prefix + topic, value, key, partition)

    async def accepted(self, keys: KeySource = KEYS) -> AcceptedLosses:
        return await accepted_losses(self.connection, self.system, keys)


@pytest_asyncio.fixture
async def logs(p2b) -> AsyncIterator[Logs]:
    given = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP")
    async with nullcontext() if given else EmbeddedBroker() as running:
        bootstrap = running.bootstrap if running else str(given)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            made = Logs(p2b.system, Connection(bootstrap, f"t{uuid.uuid4().hex[:12]}."), producer)
            async with made.connection.admin("create topics") as admin:
                topics = made.system.partitions.items()
                await admin.create_topics([NewTopic(made.connection.prefix + name, n, 1) for name, n in topics])
            yield made


async def test_a_deployment_without_losses_says_so(logs):
    await logs.note("learner", 1, Note(FOREIGN, ("decisions", 1), 0, 1))
    await logs.mark("learner", 1, Mark("aa", 3))
    found = await logs.accepted()
    assert found.as_lines() == ["none was found"]
    assert plain(found) == {"found": [], "begun_later": []}


async def test_lost_input_leaves_the_guarantee_and_a_journal_that_went_on_changes_it(logs):
    for _ in range(2):  # a retried send lands twice
        await logs.note("learner", 1, LOST_CONTEXTS)
    await logs.note("aggregator", 0, LOST_MODELS)
    await logs.mark("shuffler", 0, Mark("bb", 3, 1, accepted=True))
    found = await logs.accepted()
    assert found.found == (
        LostInput("learner", 1, LOST_CONTEXTS, erasures_to_repeat=True, checked=True),
        LostJournal("shuffler", 0, 1, checked=True),
        LostInput("aggregator", 0, LOST_MODELS, erasures_to_repeat=False, checked=True),
    )
    contexts, journal, models = found.as_lines()
    assert "contexts/1 offsets 5 to 8 (4 records, appended between 2023-11-14T22:13:20+00:00 and 2023" in contexts
    assert "The privacy guarantee is unchanged" in contexts
    assert "send them again (`hushstream forget`)" in contexts
    assert "hushstream forget" not in models
    assert "appended between ? and ?" in models
    assert "This changes the guarantee" in journal

    made = statement_of(logs.system, losses=found)
    assert [text for one in made.sections for _, text in one.facts if text in found.as_lines()] == found.as_lines()
    assert made.as_json()["accepted_losses"] == plain(found)
    assert not any(text in str(statement_of(logs.system).sections) for text in found.as_lines())


async def test_a_forged_note_is_nobodys_and_without_the_key_nothing_is_called_checked(logs):
    await logs.note("learner", 1, LOST_CONTEXTS, KeySource(seed=8))
    await logs.mark("shuffler", 0, Mark("bb", 3, 1, accepted=True))
    assert [type(one) for one in (await logs.accepted()).found] == [LostJournal]
    found = await logs.accepted(NO_KEYS)
    assert [(type(one), one.checked) for one in found.found] == [(LostInput, False), (LostJournal, False)]
    assert all(line.endswith("(not checked: the key of its zone was not given)") for line in found.as_lines())


async def test_what_was_trimmed_with_a_journal_is_said_to_be_unread(logs):
    await logs.note("learner", 1, LOST_CONTEXTS)
    journal = role_of(logs.system, "learner").journal
    async with logs.connection.admin("trim") as admin:
        await admin.delete_records({TopicPartition(logs.connection.prefix + journal, 1): RecordsToDelete(-1)})
    assert (await logs.accepted()).as_lines() == [
        "none was found",
        f"not completely searched, as their first records were deleted: {journal}/1",
    ]


async def test_a_record_that_may_have_replaced_a_mark_is_not_noted_before_its_loss_is_accepted(logs):
    """A copy without record keys passes over what a note names, so the note would hide that a mark is lost."""
    mark = Mark("bb", 3)
    await logs.mark("shuffler", 0, mark)
    await logs.put("marks-shuffler", 0, b"of nobody", mark_key("shuffler", 0, mark, "w"))
    await logs.put("marks-shuffler", 0, b"of nobody", b"of nobody")
    found = await check(logs.connection, logs.system, KEYS, ("shuffler",))
    assert [(one.offset, one.stops) for one in found.records if one.size] == [(1, True), (2, False)]
    planned = await plan(logs.connection, logs.system, KEYS, ("shuffler",))
    assert [(one.low, one.high) for one in planned.rows] == [(2, 3)]
    await logs.mark("shuffler", 0, Mark("bb", 3, 1, accepted=True))
    planned = await plan(logs.connection, logs.system, KEYS, ("shuffler",))
    assert [(one.low, one.high) for one in planned.rows] == [(1, 3)]
