"""The blocking client, for code without an event loop."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hushstream.client import Client, DecisionTimeout, SyncClient
from hushstream.privacy.keys import seeded_key
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.machines.learner import LearnerMachine


@pytest.fixture
def memory():
    return MemoryLog()


@pytest.fixture
def client(rigs, memory):
    driver = DirectDriver(memory, [LearnerMachine(rigs.make_system(), 0, seeded_key(1, "edge"))], bytes(32))
    return SyncClient(Client(DirectEventLog(memory, driver, 1)))


def test_a_program_without_a_loop_decides_shows_rewards_and_ends_phases(client, memory, rigs):
    with client:
        for number in range(3):
            decision = client.decide(f"e{number}", "ann", rigs.point(number))
            client.shown(decision.event_id, "ann", decision.arm)
            client.reward(decision.event_id, "ann", decision.arm, 1.0)
        client.end_phase(0)
    kinds = [codec.decode(record.value)[0] for record in memory.slice("reports", 0, 0).records]
    assert kinds == ["SlotReport", "Seal"]


def test_threads_share_one_client(client, rigs):
    with client, ThreadPoolExecutor(4) as pool:
        users = [f"user-{number}" for number in range(24)]
        decisions = list(pool.map(lambda user: client.decide(f"{user}:0", user, rigs.point(0)), users))
    assert [decision.user for decision in decisions] == users


def test_errors_come_through(log):
    with SyncClient(Client(log)) as client:
        with pytest.raises(DecisionTimeout):
            client.decide("e1", "ann", [0.7, 0.1, 0.1, 0.1], timeout=0.01)
        with pytest.raises(HushstreamError, match="context"):
            client.decide("e2", "ann", "words")


def test_a_client_that_was_not_started_says_so_in_place_of_hanging(client):
    with pytest.raises(HushstreamError, match="expected it to be started"):
        client.decide("e1", "ann", [0.7, 0.1, 0.1, 0.1])


def test_its_thread_ends_with_it(client):
    before = threading.active_count()
    with client:
        assert threading.active_count() > before
    assert threading.active_count() == before
    with pytest.raises(HushstreamError, match="expected it to be started"):
        client.end_phase(0)
