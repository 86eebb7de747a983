"""A budget that is spent stops releases on both runners alike, and nothing else: users go on, windows go on closing.

The price of a counter over windows pays for two; three phases are ended. There is one learner, so that what it sends
reaches each shuffler in the order of the phases.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from two_runners import decoded

from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.client.client import Client
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.ops.budget import EXHAUSTED, read
from hushstream.ops.check.verify import verify
from hushstream.replay.catalogue import make_world
from hushstream.replay.runners.playing import Place, Recording, play
from hushstream.schemas import codec
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    P2BConfig,
    PartitionConfig,
    ReleaseConfig,
    SlotConfig,
)

pytestmark = pytest.mark.process

SEED, USERS, ROUNDS, DIMENSION, ARMS = 11, 24, 4, 5, 3
PHASES, PAID, SHUFFLERS = 3, 2, 2


async def users_go_on(log: EventLog) -> int:
    """Three phases of users, each ended; gives how many decisions were answered."""
    world = make_world("synthetic", users=PHASES * USERS, seed=SEED, rounds=ROUNDS, dimension=DIMENSION, arms=ARMS)
    answered = 0

    async def act(client: Client, user: int) -> int:
        for number in range(ROUNDS):
            context = world.contexts(np.array([user]), number)[0]
            decision = await client.decide(f"u{user}:{number}", f"u{user}", context, track="cold", timeout=60.0)
            reward = world.rewards(np.array([user]), number, np.array([decision.arm]))[0]
            await client.reward(f"u{user}:{number}", f"u{user}", decision.arm, float(reward))
        return ROUNDS

    async with Client(log) as client:
        for phase in range(PHASES):
            users = range(phase * USERS, (phase + 1) * USERS)
            answered += sum(await asyncio.gather(*(act(client, user) for user in users)))
            await client.end_phase(phase)
    return answered


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[System, dict[str, Recording[int]]]:
    folder: Path = tmp_path_factory.mktemp("spent")
    config = P2BConfig(
        deployment="spent",
        arms=ARMS,
        context=ContextConfig(DIMENSION),
        expected_slots=USERS,
        encoder=EncoderConfig(codes=3),
        slot=SlotConfig(ROUNDS, settle_seconds=1e6),
        release=ReleaseConfig(epsilon=1.0, sums="counter", windows=PAID),
        partitions=PartitionConfig(learner=1, shuffler=SHUFFLERS),
        budget=BudgetConfig(1.5, 1e-6),
    )
    system = prepare(folder, config, public_dataset="synthetic")
    found = await asyncio.gather(
        play(system, Place("direct", folder, None, SEED), users_go_on),
        play(system, Place("stream", folder, None, SEED), users_go_on),
    )
    return system, dict(zip(("direct", "stream"), found, strict=True))


def test_every_user_is_answered_in_every_phase(runs):
    for recording in runs[1].values():
        assert recording.played == PHASES * USERS * ROUNDS


def test_as_many_windows_are_released_as_were_paid_for_with_the_same_bytes(runs):
    for topic, schema in (("window-sums", "WindowSums"), ("ledger", "LedgerEntry")):
        ours, theirs = (
            sorted(codec.encode(schema, fields) for fields in decoded(recording, topic, schema))
            for recording in runs[1].values()
        )
        assert ours == theirs
        assert len(ours) == PAID * SHUFFLERS


def test_windows_beyond_are_closed_and_withheld_and_cost_nothing(runs):
    system, recordings = runs
    price = system.guarantee().epsilon_micro
    found = []
    for recording in recordings.values():
        assert recording.counts["release_withheld"] == (PHASES - PAID) * SHUFFLERS
        for _, part in recording.logs.of_topic("journal-shuffler"):
            records = [codec.decode(record.value)[1] for record in part.records[1:]]
            assert [record["debit"]["epsilon_micro"] for record in records] == [price, 0, 0]
            found.append([(record["window"], record["slots"], record["debit"]) for record in records])
    assert found[:SHUFFLERS] == found[SHUFFLERS:]
    assert sum(slots for part in found[:SHUFFLERS] for _, slots, _ in part) == PHASES * USERS


def test_the_budget_is_exhausted_and_everything_follows_from_the_logs(runs):
    system, recordings = runs
    for recording in recordings.values():
        budget = read(recording.logs, system)
        assert (budget.ok, budget.exit_code) == (True, EXHAUSTED)
        assert [account.scope for account in budget.exhausted] == [f"epoch/{home}/0" for home in range(SHUFFLERS)]
        assert verify(recording.logs, system, KeySource(seed=SEED)).ok
