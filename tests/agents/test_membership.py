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

from hushstream.agents.worker.membership import Seat, watch_seats

NEVER_SECONDS = 1800.0
"""No session ends by itself while the test runs."""

SIT = """
import sys, time
from pathlib import Path
from hushstream.agents.worker.membership import Seat
seat = Seat(Path(sys.argv[1]), "shop.learner")
seat.sit()
seat.take("member-1")
seat.take("member-2")
print("sits", flush=True)
time.sleep(600)
"""


def vacant(seat: Seat) -> list[str]:
    """Member ids of those that died."""
    found = []
    for vacancy in seat.vacant():
        found.append(vacancy.member_id)
        vacancy.close()
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


def test_a_seat_is_vacant_when_its_process_is_dead_and_not_before(tmp_path: Path) -> None:
    other = Seat(tmp_path, "shop.learner")
    other.sit()
    other.take("ours")
    with subprocess.Popen([sys.executable, "-c", SIT, str(tmp_path)], stdout=subprocess.PIPE) as sitting:
        assert sitting.stdout is not None
        assert sitting.stdout.readline() == b"sits\n"
        assert vacant(other) == []
        sitting.send_signal(signal.SIGSTOP)
        assert vacant(other) == []
        sitting.kill()
        sitting.wait()
        # As whom it was last known: a member gets another name when it was away for too long.
        assert vacant(other) == ["member-2"]
    assert vacant(Seat(tmp_path, "shop.shuffler")) == []


def test_who_starts_where_one_has_died_has_its_place_and_no_other_has(tmp_path: Path) -> None:
    died = Seat(tmp_path, "g")
    instance = died.sit()
    died.take("before")
    died._held.close()  # type: ignore[union-attr] # as the system does with a process that ends
    again, beside = Seat(tmp_path, "g"), Seat(tmp_path, "g")
    assert again.sit() == instance
    assert beside.sit() != instance
    again.take("now")
    assert vacant(beside) == []
    again._held.close()  # type: ignore[union-attr]
    assert vacant(beside) == ["now"]


async def test_a_place_that_is_given_up_is_taken_over_by_nobody_meanwhile(tmp_path: Path) -> None:
    died, peer = Seat(tmp_path, "g"), Seat(tmp_path, "g")
    instance = died.sit()
    peer.sit()
    died.take("before")
    died._held.close()  # type: ignore[union-attr]
    taken: list[str] = []

    async def let_go(member_id: str) -> None:
        started = Seat(tmp_path, "g")
        taken.extend((member_id, started.sit()))
        started.leave()
        raise asyncio.CancelledError  # the watch goes on for ever

    with pytest.raises(asyncio.CancelledError):
        await watch_seats(peer, let_go)
    assert (taken[0], taken[1] != instance) == ("before", True)


def test_a_seat_is_its_owners_alone(tmp_path: Path) -> None:
    seat = Seat(tmp_path, "g")
    seat.sit()
    seat.take("one")
    (path,) = tmp_path.rglob("*.member")
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)


def test_who_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    seat, other = Seat(tmp_path, "g"), Seat(tmp_path, "g")
    seat.sit()
    seat.take("one")
    seat.leave()
    assert vacant(other) == []
    assert not list(tmp_path.rglob("*.member"))


def test_a_file_of_another_machine_is_none_of_our_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "far")
    far = Seat(tmp_path, "g")
    far.sit()
    far.take("there")
    far._held.close()  # type: ignore[union-attr]
    monkeypatch.undo()
    assert vacant(Seat(tmp_path, "g")) == []
