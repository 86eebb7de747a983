"""Removes a killed worker from its group at once, where another worker can see that it is dead.

Otherwise a killed worker holds its partitions until its session ends. Each member of a group keeps a locked file with
its member id in the data directory. The operating system releases the lock with the process, however that ended. A
worker that shares the directory on this machine (above all the same worker, started again) then asks the group to
remove the dead member, as that member would have done itself, and the others have its partitions one heartbeat later. A
member on another machine is removed when its session ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, UnknownMemberIdError, for_code
from aiokafka.protocol.group import LeaveGroupRequest

from hushstream.agents.datadir import owners_alone
from hushstream.agents.security import Cluster

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often a worker looks whether another has died."""


_SEATS = "members"


class Seat:
    """This process's place in its group, and those of the others that share the data directory."""

    def __init__(self, datadir: Path, group: str) -> None:
        """Nothing is written yet.

        Args:
            datadir: the worker's.
            group: the consumer group.
        """
        self._folder = datadir / _SEATS / group
        self._prefix = f"{socket.gethostname()}."
        self._name = f"{self._prefix}{uuid.uuid4().hex}.member"
        self._held: IO[str] | None = None
        self._member_id = ""

    def take(self, member_id: str) -> None:
        """Say under which id this process is a member now.

        Raises:
            OSError: the file cannot be written or locked.
        """
        if not member_id or member_id == self._member_id:
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        unready = self._folder / f".{self._name}"
        # Whoever may lock the file could keep this place taken.
        file = open(unready, "w", encoding="utf-8", opener=owners_alone)  # noqa: SIM115 - it is held, as its lock is
        # Locked before it has its name: nobody sees it without.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(member_id)
        file.flush()
        unready.replace(self._folder / self._name)
        if self._held is not None:
            self._held.close()
        self._held, self._member_id = file, member_id

    def leave(self) -> None:
        """Forget the place: the group was left."""
        if self._held is not None:
            (self._folder / self._name).unlink(missing_ok=True)
            self._held.close()
            self._held = None

    def vacant(self) -> dict[Path, str]:
        """Member ids of processes of this machine that ended without leaving, by their files."""
        found = {}
        for path in sorted(self._folder.glob(f"{self._prefix}*.member")):
            if path.name != self._name and (member_id := _of_the_dead(path)) is not None:
                found[path] = member_id
        return found


def is_taken(datadir: Path) -> bool:
    """Whether a process that runs has its seat in a data directory, of whatever group."""
    return any(_of_the_dead(path) is None for path in (datadir / _SEATS).glob("*/*.member"))


def _of_the_dead(path: Path) -> str | None:
    """The member id in a file that nobody locks; None while somebody does, or where locks cannot be had."""
    try:
        with path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file.read()
    except OSError:
        return None


async def watch_seats(seat: Seat, let_go: Callable[[str], Awaitable[None]]) -> None:
    """Look after the others for ever, and let those go that have died.

    Args:
        seat: of this process.
        let_go: takes a member out of the group; raises `KafkaError` or `OSError` where it is to be tried again.
    """
    while True:
        for path, member_id in (await asyncio.to_thread(seat.vacant)).items():
            try:
                await let_go(member_id)
            except (KafkaError, OSError, TimeoutError) as error:
                logger.warning("a member that died could not be taken out (%s), trying again", type(error).__name__)
                continue
            path.unlink(missing_ok=True)
        await asyncio.sleep(LOOK_SECONDS)


async def let_go(cluster: Cluster, group: str, member_id: str) -> None:
    """Take a member out of a group, as it leaves by itself when it ends cleanly.

    Raises:
        KafkaError, OSError, TimeoutError: the broker is away, or refuses.
    """
    admin = AIOKafkaAdminClient(**cluster.client_options())
    await admin.start()
    try:
        coordinator = await admin.find_coordinator(group)
        answer = await admin._send_request_to_node(coordinator, LeaveGroupRequest(group, member_id))
    finally:
        await admin.close()
    if answer.error_code and answer.error_code != UnknownMemberIdError.errno:
        error: KafkaError = for_code(answer.error_code)(group)
        raise error
    logger.info("a member that died was taken out of group %s", group)
