"""A client that answers at once, and one whose catalogue comes first."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.broker import EmbeddedBroker
from hushstream.client import (
    BadContext,
    BadReward,
    Client,
    Item,
    NoGuardrail,
    RecordClient,
    RequestRefused,
    UnknownArm,
    UnknownEvent,
    UnknownTrack,
    UnknownUser,
    connect,
    connect_records,
    waiting,
)
from hushstream.client.kafka import KafkaEventLog
from hushstream.client.ratings import connect_ratings
from hushstream.engine.catalogue import ITEMS
from hushstream.engine.declare.declaration import conversation_of, request_partitions
from hushstream.ops.connection import Connection
from hushstream.ops.topics import apply_async
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.runners.playing import DirectSession
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import of_party
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.system import declare as declare_p2b
from hushstream.systems.pdap.deployment import PdapSystem
from hushstream.systems.pdap.system import declare as declare_pdap

SHORT = 0.03
X = [0.7, 0.1, 0.1, 0.1]
PDOL = {"system": "pdol", "deployment": "words", "nodes": 2, "features": {"dimension": 4}}


def _deciding(rigs, name):
    """A deployment of each system that decides, and a good question of it."""
    if name == "p2b":
        return declare_p2b(rigs.make_system()), {"user": "ann", "context": X, "track": "private"}
    if name == "colin":
        config = parse_config(
            {
                "system": "colin",
                "deployment": "small",
                "items": {"capacity": 3},
                "features": {"dimension": 2, "norm": 1.0},
            }
        )
        core = CollaborativeSystem.of(config, SocialGraph.of_edges([("ann", "bob", 1.0)]))
        return declare_colin(core), {"user": "ann", "context": [0.1] * 6, "track": "private"}
    config = parse_config(
        {
            "system": "pdap",
            "deployment": "mall",
            "vendors": [{"name": "north", "items": {"capacity": 2}}, {"name": "south", "items": {"capacity": 2}}],
            "features": {"dimension": 2},
        }
    )
    return declare_pdap(PdapSystem.of(config)), {"user": "ann", "context": [0.5, 0.5], "track": "north"}


PARTY = {"pdap": "north"}
"""Whose topics the client talks over, where each party has its own."""


def _topic(name, topic):
    return of_party(topic, PARTY.get(name, ""))


WRONG = [
    ("p2b", {"context": X[:3]}, BadContext),
    ("p2b", {"context": [0.7, 0.4, 0.2, 0.1]}, BadContext),
    ("p2b", {"context": [1.1, -0.1, 0.0, 0.0]}, BadContext),
    ("p2b", {"eligible": [99]}, UnknownArm),
    ("p2b", {"baseline": 99}, UnknownArm),
    ("p2b", {"track": "nowhere"}, UnknownTrack),
    ("colin", {"context": [0.1] * 4}, BadContext),
    ("colin", {"context": [0.9] * 6}, BadContext),
    ("colin", {"user": "eve"}, UnknownUser),
    ("colin", {"track": "north"}, UnknownTrack),
    ("pdap", {"context": [0.5, 1.5]}, BadContext),
    ("pdap", {"track": "west"}, UnknownTrack),
    ("pdap", {"eligible": [4]}, UnknownArm),
]


@pytest.mark.parametrize(("name", "fault", "error"), WRONG)
async def test_what_a_room_declares_is_refused_before_it_is_sent_and_by_its_learner_when_it_was(
    rigs, name, fault, error
):
    (system, good), party = _deciding(rigs, name), PARTY.get(name, "")
    wrong = {"event_id": "wrong", **good, **fault, "timeout": None}
    async with DirectSession(system, KeySource(seed=1)) as session:
        async with Client(session.event_log(party), rules=system.requests, party=party) as client:
            with pytest.raises(error):
                await client.decide(**wrong)
            assert not await _records(session, _topic(name, "contexts"))
        # The learner refuses the same; who did not know the rules hears of it when its journal is past the question.
        async with Client(session.event_log(party), party=party) as client:
            if "baseline" in fault:
                assert (await client.decide(**wrong)).policy == "refused"
            else:
                with pytest.raises(RequestRefused, match="dead-letters list edge"):
                    await client.decide(**wrong)
            assert (await client.decide("good", **good, timeout=60)).policy == "model"
        assert await _records(session, _topic(name, "dead-letters-edge")) == 1


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ({"age": "forty"}, "age: expected a finite number, got a text"),
        ({"age": float("nan")}, "age: expected a finite number"),
        ({"member": 1}, "member: expected true or false, got a whole number"),
        ({"country": "de"}, 'expected names among age, member, got "country"'),
        ([0.5, 0.5], "expected values by name"),
    ],
)
async def test_vendors_that_declare_features_take_their_values_by_name(context, said):
    features = {"age": {"kind": "number", "range": [16, 96]}, "member": {"kind": "boolean"}}
    vendors = [{"name": name, "items": {"capacity": 2}} for name in ("north", "south")]
    config = parse_config({"system": "pdap", "deployment": "mall", "vendors": vendors, "features": features})
    system = declare_pdap(PdapSystem.of(config))
    async with (
        DirectSession(system, KeySource(seed=1)) as session,
        Client(session.event_log("north"), rules=system.requests, party="north") as client,
    ):
        with pytest.raises(BadContext, match=said):
            await client.decide("wrong", "ann", context, track="north", timeout=None)
        assert not await _records(session, "contexts.north")
        for event, good in (("all", {"age": 30, "member": True}), ("clipped", {"age": 1000}), ("missing", {})):
            assert (await client.decide(event, "ann", good, track="north", timeout=60)).policy == "model"


async def _records(session, topic):
    """How many there are."""
    return sum(len(part.records) for _, part in (await session.logs()).of_topic(topic))


async def test_with_a_baseline_a_question_that_the_learner_refused_is_answered_by_it_and_marked(rigs):
    system, good = _deciding(rigs, "p2b")
    async with DirectSession(system, KeySource(seed=1)) as session, Client(session.event_log()) as client:
        refused = await client.decide("e1", "ann", X[:3], baseline=2, timeout=None)
        assert (refused.arm, refused.policy, refused.propensity) == (2, "refused", None)
        assert (await client.decide("e1", **good, timeout=None)).policy == "model"


@pytest.mark.parametrize(
    ("name", "told", "error"),
    [
        ("p2b", {"user": "ann", "arm": 99, "reward": 1.0}, UnknownArm),
        ("p2b", {"user": "ann", "arm": -1, "reward": 1.0}, UnknownArm),
        ("p2b", {"user": "bob", "arm": 0, "reward": 1.0}, UnknownEvent),
        ("p2b", {"user": "ann", "arm": 0, "reward": 1.5}, BadReward),
        ("colin", {"user": "eve", "arm": 0, "reward": 1.0}, UnknownEvent),
        ("pdap", {"user": "ann", "arm": 0, "reward": 0.123}, BadReward),
    ],
)
async def test_feedback_that_no_learner_takes_is_refused_and_not_sent(rigs, name, told, error):
    (system, good), party = _deciding(rigs, name), PARTY.get(name, "")
    async with (
        DirectSession(system, KeySource(seed=1)) as session,
        Client(session.event_log(party), rules=system.requests, party=party) as client,
    ):
        await client.decide("e1", **good, timeout=60)
        with pytest.raises(error):
            await client.reward("e1", **told)
        assert not await _records(session, _topic(name, "clicks"))


@pytest.mark.parametrize(
    ("measured", "told", "error"),
    [
        ({}, {"user": "ann", "harm": 1.0}, NoGuardrail),
        ({"own": 0.1, "guardrail": "returned"}, {"user": "bob", "harm": 1.0}, UnknownEvent),
        ({"own": 0.1, "guardrail": "returned"}, {"user": "ann", "harm": 1.5}, BadReward),
        ({"own": 0.1, "guardrail": "returned"}, {"user": "ann", "harm": 0.5}, None),
    ],
)
async def test_a_harm_is_sent_where_the_measurement_counts_one(rigs, measured, told, error):
    system = declare_p2b(rigs.make_system(measurement=measured))
    async with (
        DirectSession(system, KeySource(seed=1)) as session,
        Client(session.event_log(), rules=system.requests) as client,
    ):
        await client.decide("e1", "ann", X, timeout=60)
        with pytest.raises(error) if error else contextlib.nullcontext():
            await client.harm("e1", **told)
        assert await _records(session, "clicks") == (error is None)


async def test_a_node_that_there_is_not_and_a_record_that_breaks_a_bound_are_refused_before_they_are_sent():
    class Nowhere:
        async def start(self, on_answers):
            pass

        async def append(self, topic, partition, value):
            raise AssertionError("it was sent")

        def partitions(self):
            return 1

        async def stop(self):
            pass

    async with RecordClient(Nowhere(), 2, 4) as client:
        for node, indices, values, error in [
            (2, [0], [0.5], RequestRefused),
            (0, [4], [0.5], BadContext),
            (0, [0], [1.5], BadContext),
        ]:
            with pytest.raises(error):
                await client.predict("e1", "ann", node, indices, values)


# While no learner answers.


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(waiting, "SILENT_SECONDS", SHORT)


async def _silence(client):
    """Ask once, and let it lie for long enough."""
    await client.decide("first", "ann", X, baseline=0, timeout=0)
    await asyncio.sleep(2 * SHORT)


async def test_when_no_learner_answers_the_baseline_comes_at_once_and_is_marked(log, impatient):
    async with Client(log) as client:
        assert (await client.decide("first", "ann", X, baseline=3, timeout=0)).policy == "timeout"
        await asyncio.sleep(2 * SHORT)
        for number in range(20):
            answer = await asyncio.wait_for(client.decide(f"e{number}", "ann", X, baseline=3, timeout=None), timeout=60)
            assert (answer.arm, answer.policy, answer.propensity) == (3, "no_learner", None)
        await asyncio.sleep(0)
        # Of those twenty one went out, to ask whether somebody is there again.
        assert log.contexts == 2


async def test_it_closes_by_itself_when_the_journal_grows(log, impatient):
    async with Client(log) as client:
        await _silence(client)
        await client.decide("probe", "ann", X, baseline=3, timeout=None)
        await asyncio.sleep(0)
        log.work()
        asked = asyncio.create_task(client.decide("e1", "ann", X, baseline=3, timeout=None))
        await asyncio.sleep(0.01)
        log.work()
        assert (await asked).policy == "model"
        # The probe was a question like any other: its answer is known now.
        assert (await client.decide("probe", "ann", X, baseline=3)).policy == "model"


async def test_what_came_of_a_question_that_was_not_sent_is_not_written(log, impatient, monkeypatch):
    monkeypatch.setattr(waiting, "PROBE_SECONDS", 3600)
    async with Client(log) as client:
        await _silence(client)
        await client.decide("probe", "ann", X, baseline=3, timeout=None)
        await client.decide("unsent", "ann", X, baseline=3, timeout=None)
        await client.shown("unsent", "ann", 3)
        await client.reward("unsent", "ann", 3, 1.0)
        assert ("clicks", 0) not in log.rig.logs
        log.work()
        # Asked again, it is sent, and what comes of it counts.
        asked = asyncio.create_task(client.decide("unsent", "ann", X, timeout=None))
        await asyncio.sleep(0.01)
        log.work()
        await client.shown("unsent", "ann", (await asked).arm)
        assert len(log.rig.logs["clicks", 0]) == 1


async def test_who_gave_no_baseline_waits_for_a_learner_as_long_as_they_said(log, impatient):
    async with Client(log) as client:
        await _silence(client)
        asked = asyncio.create_task(client.decide("e1", "ann", X, timeout=None))
        await asyncio.sleep(0.01)
        log.work()
        assert (await asked).policy == "model"


async def test_a_learner_that_refuses_all_is_not_taken_for_none(log, impatient):
    async with Client(log) as client:
        asked = asyncio.create_task(client.decide("e1", "ann", X[:3], baseline=1, timeout=None))
        await asyncio.sleep(0.01)
        log.work()
        assert (await asked).policy == "refused"
        await asyncio.sleep(2 * SHORT)
        asked = asyncio.create_task(client.decide("e2", "ann", X, baseline=1, timeout=None))
        await asyncio.sleep(0.01)
        log.work()
        assert (await asked).policy == "model"


# Over Kafka's protocol.


SHOP = {
    "deployment": "small",
    "expected_slots": 1000,
    "items": {"capacity": 3},
    "features": {"dimension": 3, "digits": 1},
    "encoder": {"codes": 4},
}


async def test_a_folder_of_the_other_conversation_is_refused_in_words(tmp_path):
    prepare(tmp_path / "shop", parse_config(SHOP))
    prepare(tmp_path / "words", parse_config(PDOL))
    with pytest.raises(HushstreamError, match="applications write records, got small, where they write contexts"):
        connect_records("127.0.0.1:9", tmp_path / "shop")
    with pytest.raises(HushstreamError, match="applications write contexts, got words"):
        connect("127.0.0.1:9", tmp_path / "words")
    with pytest.raises(HushstreamError, match="expected the deployment's folder, or nodes and dimension"):
        connect_records("127.0.0.1:9", "words")
    prepare(tmp_path / "films", parse_config({"system": "bgt", "deployment": "films", "items": {"capacity": 5}}))
    with pytest.raises(HushstreamError, match="applications write ratings, got words, where they write records"):
        connect_ratings("127.0.0.1:9", tmp_path / "words")
    assert connect_ratings("127.0.0.1:9", tmp_path / "films")
    assert connect_records("127.0.0.1:9", tmp_path / "words")


async def test_a_client_reads_the_rules_in_the_folder_and_refuses_one_that_the_workers_do_not_go_by(tmp_path, rigs):
    shop = prepare(tmp_path / "shop", parse_config(SHOP))
    async with EmbeddedBroker() as broker:
        await apply_async(Connection(broker.bootstrap, "small."), shop)
        async with connect(broker.bootstrap, tmp_path / "shop") as client:
            with pytest.raises(BadContext, match="expected 3 numbers"):
                await client.decide("e1", "ann", [0.5, 0.5], timeout=None)
            assert (await client.decide("e2", "ann", [0.5, 0.5, 0.0], baseline=1, timeout=0.01)).policy == "timeout"
        log = KafkaEventLog(broker.bootstrap, "small.")
        await log.start(lambda *_: None)
        await log.append("decisions", 0, rigs.LearnerRig().genesis)
        await log.stop()
        with pytest.raises(
            HushstreamError,
            match=r"expected configuration \w+ of deployment .* got \w+: read it from the folder .* the same release",
        ):
            async with connect(broker.bootstrap, tmp_path / "shop"):
                pass


ASKED = {"country": "de"}


class Behind(MemoryLog):
    """What machines see of a log: of the catalogue's changes only so many.

    Attributes:
        shown: how many.
    """

    def __init__(self, log: MemoryLog) -> None:
        super().__init__()
        self._log, self.shown = log, 0

    def end(self, topic: str, partition: int) -> int:
        return min(self.shown, self._log.end(topic, partition)) if topic == ITEMS else self._log.end(topic, partition)

    def slice(self, topic: str, partition: int, low: int, high: int | None = None) -> Any:
        top = self.end(topic, partition) if high is None else high
        return self._log.slice(topic, partition, low, top)

    def append(self, topic: str, partition: int, value: bytes) -> int:
        return self._log.append(topic, partition, value)


class Place:
    """A deployment with named items whose learner reads the catalogue when it is told to."""

    def __init__(self, folder: Path) -> None:
        config = {
            "system": "p2b",
            "deployment": "behind",
            "items": {"named": True, "capacity": 3},
            "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}},
            "release": {"form": "features", "window_units": 100},
            "expected_slots": 100,
        }
        self.system = prepare(folder, parse_config(config))
        self.log = MemoryLog()
        self.behind = Behind(self.log)
        self.driver = DirectDriver(self.behind, all_machines(self.system, KeySource(seed=1)), bytes(32))

    def client(self) -> Client:
        answers = conversation_of(self.system, "").answers
        log = DirectEventLog(self.log, self.driver, request_partitions(self.system), answers)
        return Client(log, rules=self.system.requests)

    def asked(self) -> int:
        return sum(self.log.end("contexts", partition) for partition in range(request_partitions(self.system)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "behind")


async def test_who_asks_before_the_learner_has_read_the_catalogue_is_answered_when_it_has(place):
    async with place.client() as client:
        await client.items.add_all([Item("hat"), Item("scarf")])
        await client.items.refresh()
        waiting = asyncio.create_task(client.decide("e1", "ann", ASKED, timeout=None))
        for _ in range(20):
            await asyncio.sleep(0)
        # It was refused and is not asked again before the learner has read on.
        assert place.asked() == 1
        assert not waiting.done()
        place.behind.shown = 2
        # Any question lets the machines fold in this runner.
        found = await client.decide("e2", "ben", ASKED, timeout=None)
        assert found.item in ("hat", "scarf")
        first = await asyncio.wait_for(waiting, 60)
        assert first.item in ("hat", "scarf")
        assert place.asked() == 3


async def test_an_item_can_be_asked_for_as_soon_as_it_is_added(place):
    async with place.client() as client:
        place.behind.shown = 1
        await client.items.add("hat")
        assert (await client.decide("e1", "ann", ASKED, timeout=None)).item == "hat"
        await client.items.add("scarf")
        waiting = asyncio.create_task(client.decide("e2", "ann", ASKED, ["scarf"], timeout=None))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        place.behind.shown = 2
        await client.decide("e3", "ben", ASKED, timeout=None)
        assert (await asyncio.wait_for(waiting, 60)).item == "scarf"


async def test_what_a_learner_refuses_that_has_read_everything_is_refused_at_once(place):
    place.behind.shown = 9
    async with place.client() as client:
        await client.items.add("hat")
        await client.items.add("scarf")
        await client.decide("e1", "ann", ASKED, timeout=None)
        await client.items.retire("scarf")
        await client.decide("e2", "ann", ASKED, timeout=None)
        asked = place.asked()
        with pytest.raises(RequestRefused, match="dead-letters list edge"):
            await asyncio.wait_for(client.decide("e3", "ann", ASKED, ["scarf"], timeout=None), 60)
        assert place.asked() == asked + 1
