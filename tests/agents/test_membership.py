"""A member that died is out of its group at once, and one that lives stays in it."""

from __future__ import annotations

import asyncio
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.membership import GroupPlace, watch_places

NEVER_SECONDS = 1800.0
"""No session ends by itself while the test runs."""

CLAIM = """
import sys, time
from pathlib import Path
from hushstream.agents.worker.membership import GroupPlace
place = GroupPlace(Path(sys.argv[1]), "shop.learner")
place.claim()
place.record_member("member-1")
place.record_member("member-2")
print("claimed", flush=True)
time.sleep(600)
"""


def abandoned(place: GroupPlace) -> list[str]:
    """Member ids of those that died."""
    found = []
    for dead in place.abandoned():
        found.append(dead.member_id)
        dead.close()
    return found


@pytest.mark.asyncio(loop_scope="module")
async def test_the_partitions_of_a_killed_worker_go_to_who_shares_its_data_directory(
    bench: Any, harness: Any, machines: Any
) -> None:
    partitions, records = 2, 40
    logs = {("events", home): [(1_000_000 + 10 * i, b"k%d" % i) for i in range(records)] for home in range(partitions)}
    making = machines.counting(targets=partitions)
    arguments = ("counting-seats", f"{machines.__file__}:counting", {"targets": partitions}, making, logs, partitions)
    async with harness.Deployment(bench, *arguments, {"session_timeout_seconds": NEVER_SECONDS}) as deployed:
        first = await deployed.start()
        await deployed.taken_up(first)
        first.kill(signal.SIGKILL)
        await first.exit_code()
        # A session that is still held would keep the next one out of the group.
        second = await deployed.start()
        await deployed.taken_up(second)
        third = await deployed.start()
        await third.logged("partition 0: at journal record", harness.PATIENCE_SECONDS, "partition 1: at journal record")
        second.kill(signal.SIGKILL)
        await second.exit_code()
        await deployed.taken_up(third)
        await deployed.folded_all()


def test_a_place_is_vacant_when_its_process_is_dead_and_not_before(tmp_path: Path) -> None:
    other = GroupPlace(tmp_path, "shop.learner")
    other.claim()
    other.record_member("ours")
    with subprocess.Popen([sys.executable, "-c", CLAIM, str(tmp_path)], stdout=subprocess.PIPE) as claiming:
        assert claiming.stdout is not None
        assert claiming.stdout.readline() == b"claimed\n"
        assert abandoned(other) == []
        claiming.send_signal(signal.SIGSTOP)
        assert abandoned(other) == []
        claiming.kill()
        claiming.wait()
        # As whom it was last known: a member gets another name when it was away for too long.
        assert abandoned(other) == ["member-2"]
    assert abandoned(GroupPlace(tmp_path, "shop.shuffler")) == []


def test_who_starts_where_one_has_died_has_its_place_and_no_other_has(tmp_path: Path) -> None:
    died = GroupPlace(tmp_path, "g")
    instance = died.claim()
    died.record_member("before")
    died._own.close()  # type: ignore[union-attr] # as the system does with a process that ends
    again, beside = GroupPlace(tmp_path, "g"), GroupPlace(tmp_path, "g")
    assert again.claim() == instance
    assert beside.claim() != instance
    again.record_member("now")
    assert abandoned(beside) == []
    again._own.close()  # type: ignore[union-attr]
    assert abandoned(beside) == ["now"]


async def test_a_place_that_is_given_up_is_taken_over_by_nobody_meanwhile(tmp_path: Path) -> None:
    died, peer = GroupPlace(tmp_path, "g"), GroupPlace(tmp_path, "g")
    instance = died.claim()
    peer.claim()
    died.record_member("before")
    died._own.close()  # type: ignore[union-attr]
    taken: list[str] = []

    async def remove_member(member_id: str) -> None:
        started = GroupPlace(tmp_path, "g")
        taken.extend((member_id, started.claim()))
        started.leave()
        raise asyncio.CancelledError  # the watch goes on for ever

    with pytest.raises(asyncio.CancelledError):
        await watch_places(peer, remove_member)
    assert (taken[0], taken[1] != instance) == ("before", True)


def test_a_place_is_its_owners_alone(tmp_path: Path) -> None:
    place = GroupPlace(tmp_path, "g")
    place.claim()
    place.record_member("one")
    (path,) = tmp_path.rglob("*.member")
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)


def test_who_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    place, other = GroupPlace(tmp_path, "g"), GroupPlace(tmp_path, "g")
    place.claim()
    place.record_member("one")
    place.leave()
    assert abandoned(other) == []
    assert not list(tmp_path.rglob("*.member"))


def test_a_file_of_another_machine_is_none_of_our_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "far")
    far = GroupPlace(tmp_path, "g")
    far.claim()
    far.record_member("there")
    far._own.close()  # type: ignore[union-attr]
    monkeypatch.undo()
    assert abandoned(GroupPlace(tmp_path, "g")) == []
