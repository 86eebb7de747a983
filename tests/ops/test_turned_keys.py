"""Keys that were turned: a journal is followed under the key it was begun with, until that key is destroyed."""

from __future__ import annotations

import asyncio

import pytest

from hushstream.agents.deployment import KeySource
from hushstream.agents.roles import all_machines, role_work
from hushstream.client.client import Client
from hushstream.ops.copies import LogCopy
from hushstream.ops.findings import Status
from hushstream.ops.verify import verify
from hushstream.privacy.errors import RetiredKey
from hushstream.privacy.key_files import load_ring, retire, rotate
from hushstream.privacy.keys import Zone, generate_keys, key_path
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog


@pytest.fixture
def played(rigs, tmp_path):
    """A deployment under key files that released one window, and its logs."""
    generate_keys(tmp_path, (Zone.EDGE, Zone.SHUFFLER))
    system, keys, log = rigs.make_system(), KeySource(folder=tmp_path), MemoryLog()
    driver = DirectDriver(log, all_machines(system, keys), bytes(range(32)))

    async def play():
        async with Client(DirectEventLog(log, driver, 1)) as client:
            for number in range(24):
                event, user = f"e{number}", f"u{number % 8}"
                decision = await client.decide(event, user, rigs.point(number))
                await client.reward(event, user, decision.arm, 1.0)
            await client.seal(0)

    asyncio.run(play())
    assert any(part.records for _, part in LogCopy.of(log).of_topic("crowds"))
    return system, keys, log, tmp_path


def turn(folder, *zones):
    for zone in zones:
        rotate(key_path(folder, zone))


def test_what_was_released_before_a_turn_stays_verifiable(played):
    system, keys, log, folder = played
    before = verify(LogCopy.of(log), system, keys)
    turn(folder, Zone.EDGE, Zone.SHUFFLER, Zone.SHUFFLER)
    after = verify(LogCopy.of(log), system, keys)
    assert before.ok
    assert after.totals == before.totals
    assert keys.key(Zone.SHUFFLER) != load_ring(key_path(folder, Zone.SHUFFLER)).of(0)


def test_a_worker_goes_on_with_a_journal_under_the_key_it_was_begun_with(played):
    system, keys, log, folder = played
    turn(folder, Zone.SHUFFLER)
    genesis = log.slice("journal-shuffler", 0, 0).records[0].value
    machine = role_work("shuffler", system, keys).make_machine.of_journal(0, genesis)
    machine.start(genesis)
    assert machine.genesis(bytes(32)) != genesis


def test_a_new_journal_is_begun_under_the_turned_key(played):
    system, keys, _, folder = played
    before = role_work("shuffler", system, keys).make_machine(0).genesis(bytes(32))
    turn(folder, Zone.SHUFFLER)
    after = role_work("shuffler", system, keys).make_machine(0).genesis(bytes(32))
    assert before != after


def test_after_a_retired_key_nothing_can_be_derived_and_nothing_is_called_changed(played):
    system, keys, log, folder = played
    turn(folder, Zone.SHUFFLER)
    retire(key_path(folder, Zone.SHUFFLER), 0)
    found = verify(LogCopy.of(log), system, keys)
    assert found.ok
    assert found.of("journal-shuffler")[Status.UNCHECKABLE] == len(log.slice("journal-shuffler", 0, 0).records)
    genesis = log.slice("journal-shuffler", 0, 0).records[0].value
    with pytest.raises(RetiredKey, match="retired"):
        role_work("shuffler", system, keys).make_machine.of_journal(0, genesis)


def test_a_journal_of_a_key_that_the_file_never_held_is_called_changed(played, tmp_path):
    system, _, log, _ = played
    other = tmp_path / "other"
    generate_keys(other, (Zone.EDGE, Zone.SHUFFLER))
    assert not verify(LogCopy.of(log), system, KeySource(folder=other)).ok
