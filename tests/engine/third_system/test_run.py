"""A system of another package runs: its roles fold, release, pay and publish, and every operation works on its logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.engine.machine import releasing
from hushstream.engine.records import InputSlice
from hushstream.ops import dead_letters
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify, verify_export
from hushstream.ops.export import export_copy, open_export
from hushstream.ops.forget import ERASED, erase_export
from hushstream.ops.log_copy import LogCopy
from hushstream.ops.spending import budget
from hushstream.replay.runners.direct import DirectDriver
from hushstream.replay.runners.memory import MemoryLog
from hushstream.schemas import codec


def sums(record: dict[str, Any]) -> Any:
    return np.frombuffer(record["sums"], "<i8")


def test_every_full_window_is_released_with_its_debit_and_gives_a_standing(played: Any) -> None:
    journal, tallies = played.records("journal-ballots"), played.records("tallies")
    homes = [part for (name, _), part in played.log.partitions() if name == "votes"]
    assert len(homes) == 2
    assert len(tallies) == len(journal) == sum(len(votes) // 5 for votes in homes) >= 3
    assert [record["votes"] for record in tallies] == [5] * len(tallies)
    assert {record["debit"]["epsilon_micro"] for record in journal} == {500_000}
    entries = played.records("spent-on-votes")
    assert {entry["entry_id"] for entry in entries} == {record["tally_id"] for record in tallies}
    standings = played.records("standings")
    assert [standing["version"] for standing in standings] == list(range(1, len(tallies) + 1))
    assert np.frombuffer(standings[-1]["shares"], "<f8").sum() == pytest.approx(1.0)
    total = np.maximum(sum(sums(record) for record in tallies), 1)
    np.testing.assert_allclose(np.frombuffer(standings[-1]["shares"], "<f8"), total / total.sum())


def test_released_sums_are_the_votes_with_the_noise_of_their_place(played: Any) -> None:
    """Two windows with the same votes differ, and under one key the same log gives the same bytes."""
    tallies = played.records("tallies")
    exact = [record for record in tallies if sums(record).sum() == record["votes"]]
    # At epsilon 0.5 three counts' noise adds to nothing with a chance below one in six: not in all windows.
    assert len(exact) < len(tallies)
    again = MemoryLog()
    for (topic, partition), part in played.log.partitions():
        if topic == "votes":
            again.load(topic, partition, list(part))
    machines = [
        role_work(role.name, played.system, played.keys).make_machine(home)
        for role in played.system.roles
        for home in range(played.system.homes(role))
    ]
    DirectDriver(again, machines, bytes(32)).pump()
    own = ("journal-ballots", "tallies", "spent-on-votes")
    for (topic, partition), part in played.log.partitions():
        if topic in own:
            assert [r.value for r in again.slice(topic, partition, 0).records] == [r.value for r in part], topic
    # A standing's head holds the log times of its tallies, too.
    standings = played._replace(log=again).records("standings")
    assert [record["shares"] for record in standings] == [record["shares"] for record in played.records("standings")]


def test_a_vote_beyond_the_allowance_or_of_a_known_id_does_not_count(played: Any) -> None:
    before = sum(step.counts["vote"] for step in played.driver.steps)
    assert before == 24
    played.vote("user-0", 1, "another")
    played.vote("user-0", 0)
    played.driver.pump()
    counts = [step.counts for step in played.driver.steps]
    assert sum(count["vote"] for count in counts) == before
    assert sum(count["allowance_spent"] for count in counts) == 1
    assert sum(count["repeated_vote"] for count in counts) == 1


def test_a_machine_that_is_restored_goes_on_as_one_that_was_not(played: Any) -> None:
    for role in played.system.roles:
        for home in range(played.system.homes(role)):
            make = role_work(role.name, played.system, played.keys).make_machine
            through, restored = make(home), make(home)
            journal = played.log.slice(role.journal, home, 0).records
            for machine in (through, restored):
                machine.start(journal[0].value)
            source = (role.inputs[0], home)
            votes = played.log.slice(*source, 0).records
            half = len(votes) // 2
            outputs = []
            for machine in (through, restored):
                first = machine.fold([InputSlice(*source, 0, half, votes[:half])])
                if machine is restored:
                    packed, machine = machine.snapshot(), make(home)
                    machine.start(journal[0].value)
                    machine.restore(packed)
                rest = machine.fold([InputSlice(*source, half, len(votes), votes[half:])])
                outputs.append([(step.journal, step.releases) for step in (*first, *rest)])
                last = machine
            assert outputs[0] == outputs[1]
            releases = releasing(last)
            assert (releases is not None) == (role.name == "tally")
            assert releases is None or releases.request_epoch(bytes(16), forked=True)


def test_verify_finds_all_that_was_published_and_names_what_was_not(played: Any) -> None:
    found = verify(LogCopy.of(played.log), played.system, played.keys)
    assert found.ok
    assert not found.findings
    assert found.of("tallies")[Status.EQUAL] == len(played.records("tallies"))
    assert found.of("standings")[Status.EQUAL] == len(played.records("standings")) + 1
    tally = played.log.slice("tallies", 0, 0).records[0].value
    altered = codec.encode("Tally", {**codec.decode(tally)[1], "private_as_stated": True})
    assert altered != tally
    played.log.append("tallies", 0, altered)
    changed = verify(LogCopy.of(played.log), played.system, played.keys)
    assert not changed.ok
    assert [one.source for one in changed.tallies if one.findings] == [("tallies", 0)]


def test_without_the_zones_key_its_role_is_named_as_unchecked(played: Any, tmp_path: Path) -> None:
    found = verify(LogCopy.of(played.log), played.system, KeySource(tmp_path))
    assert found.unchecked == ("tally",)
    assert found.of("standings")[Status.EQUAL] == len(played.records("standings")) + 1


def test_the_budget_reads_its_ledger_and_sees_an_entry_that_is_missing(played: Any) -> None:
    logs = LogCopy.of(played.log)
    found = budget.read(logs, played.system)
    assert found.ok
    assert budget.budget_topics(played.system) == ("spent-on-votes", "marks-ballots")
    assert dict(found.by_mechanism) == {"histogram": len(played.records("tallies"))}
    assert {account.spent.epsilon_micro for account in found.charges} == {500_000}
    assert [account.spent.epsilon_micro for account in found.deployments] == [1_000_000, 1_000_000]
    assert "votes of a user: 2 planned, 2 fit" in found.as_text()
    assert (
        "One person in a whole life, 2 units on each device: at most e^2 about which of two things one person did,"
        " e^1 about whether they took part at all.\n"
    ) in found.as_text()


def test_refused_votes_go_to_their_zones_dead_letters_with_the_systems_own_reason(played: Any) -> None:
    partition, offset = played.vote("user-3", 7)
    played.vote("user-4", 1, "other", config_digest=bytes(16))
    played.log.append("votes", partition, b"junk")
    played.log.append("tallies", 0, b"junk")
    played.driver.pump()
    logs = LogCopy.of(played.log)
    topics = tuple(topic.name for topic in played.system.topics if topic.holds_dead_letters)
    assert topics == ("dead-letters-ballots", "dead-letters-board")
    letters = dead_letters.read(logs, topics, played.system.partitions)
    assert sorted((letter.zone, letter.role, letter.reason) for letter in letters) == [
        ("ballots", "tally", "not_single_object"),
        ("ballots", "tally", "other_configuration"),
        ("ballots", "tally", "unknown_option"),
        ("board", "board", "not_single_object"),
    ]
    (refused,) = dead_letters.of_record(letters, "votes", partition, offset)
    assert refused.reason == "unknown_option"
    found = verify(logs, played.system, played.keys)
    assert [one.source for one in found.tallies if one.findings] == [("tallies", 0)], "nobody of ours wrote the junk"


def test_an_erasure_drops_a_vote_that_waits_and_leaves_the_allowance(played: Any, forget: Any) -> None:
    played.vote("ann", 0)
    played.driver.pump()
    done = forget("ann")
    assert (done.topic, done.role, done.folded) == ("votes", "tally", None)
    assert "only the zone of the tally can see whether it has been folded" in done.as_text()
    assert "votes: 7 days" in done.as_text()
    assert "ann" not in done.as_text()
    assert sum(step.counts["forgotten"] for step in played.driver.steps) == 1
    played.vote("ann", 0, "again")
    played.vote("ann", 0, "once more")
    played.driver.pump()
    assert played.driver.steps[-1].counts["allowance_spent"] == 1
    assert verify(LogCopy.of(played.log), played.system, played.keys).ok


def test_an_export_loses_an_erased_users_votes_and_verify_says_erased_not_changed(
    played: Any, forget: Any, tmp_path: Path
) -> None:
    forget("user-5")
    manifest = export_copy(LogCopy.of(played.log), played.system, tmp_path / "copy")
    assert "votes in clear" in manifest.notice
    assert verify_export(tmp_path / "copy", played.system, played.keys).ok
    assert erase_export(tmp_path / "copy", played.system, "user-5") == 2
    left = [r.value for _, part in open_export(tmp_path / "copy").of_topic("votes") for r in part.records]
    assert left.count(ERASED) == 2
    assert not [value for value in left if b"user-5:" in value]
    found = verify_export(tmp_path / "copy", played.system, played.keys)
    assert found.ok
    assert found.totals[Status.ERASED] > 0
