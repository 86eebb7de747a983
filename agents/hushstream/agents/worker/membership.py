"""Keeps the place of a killed worker in its group for the same worker started again, or gives it up at once.

Otherwise a killed worker holds its partitions until its session ends, and so does a rebalance that waits for it: a
supervisor that starts it again at once would make the others wait too. Each member of a group keeps a locked file in
its data directory, whose name is its instance id in the group (static membership, KIP-345) and which holds its member
id. The operating system releases the lock with the process, however that ended.

A worker that starts in this data directory on this machine takes over a file that nobody locks. The group then knows it
by its instance id, and gives it the partitions that it had: no other member notices. A worker that runs and shares the
directory asks the group to remove the dead member, as that member would have done itself, and the others have its
partitions one heartbeat later. A member on another machine is removed when its session ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
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


_SEATS, _SUFFIX = "members", ".member"


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
        self._held: Vacancy | None = None
        self._member_id = ""

    def sit(self) -> str:
        """Take a place that a process of this machine died on, or a new one; returns the instance id in the group.

        Raises:
            OSError: the file cannot be written or locked.
        """
        if self._held is None:
            self._held = next(self.vacant(), None) or self._new()
            self._member_id = self._held.member_id
        return self._held.path.name.removeprefix(self._prefix).removesuffix(_SUFFIX)

    def take(self, member_id: str) -> None:
        """Say under which id this process, which sits, is a member now.

        Raises:
            OSError: the file cannot be written.
        """
        if self._held is None or not member_id or member_id == self._member_id:
            return
        self._held.note(member_id)
        self._member_id = member_id

    def leave(self) -> None:
        """Forget the place: the group was left."""
        if self._held is not None:
            self._held.end()
            self._held = None

    def vacant(self) -> Iterator[Vacancy]:
        """Places of processes of this machine that ended without leaving; each is locked, and to be closed."""
        for path in sorted(self._folder.glob(f"{self._prefix}*{_SUFFIX}")):
            if (found := _vacancy(path)) is not None:
                yield found

    def _new(self) -> Vacancy:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / f"{self._prefix}{uuid.uuid4().hex}{_SUFFIX}"
        unready = path.with_name(f".{path.name}")
        # Whoever may lock the file could keep this place taken.
        file = open(unready, "w+", encoding="utf-8", opener=owners_alone)  # noqa: SIM115 - it is held, as its lock is
        # Locked before it has its name: nobody sees it without.
        fcntl.flock(file, fcntl.LOCK_EX)
        unready.replace(path)
        return Vacancy(path, file, "")


@dataclass(slots=True)
class Vacancy:
    """The locked file of one place in a group: of this process, or of one that has died."""

    path: Path
    file: IO[str]
    member_id: str

    def note(self, member_id: str) -> None:
        """Write who has the place now."""
        self.file.seek(0)
        self.file.write(member_id)
        self.file.truncate()
        self.file.flush()

    def end(self) -> None:
        """Forget the place; under the lock, so that nobody takes it over meanwhile."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leave it to whoever looks next."""
        self.file.close()


def is_taken(datadir: Path) -> bool:
    """Whether a process that runs has its seat in a data directory, of whatever group."""
    taken = False
    for path in (datadir / _SEATS).glob(f"*/*{_SUFFIX}"):
        found = _vacancy(path)
        taken = taken or found is None
        if found is not None:
            found.close()
    return taken


def _vacancy(path: Path) -> Vacancy | None:
    """A place that nobody has locked, locked; None while somebody has, or where locks cannot be had."""
    try:
        file = path.open("r+", encoding="utf-8")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had it locked until now may have forgotten it: then nobody finds this file again.
        if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return Vacancy(path, file, file.read())
    except OSError:
        pass
    file.close()
    return None


async def watch_seats(seat: Seat, let_go: Callable[[str], Awaitable[None]]) -> None:
    """Look after the others for ever, and let those go that have died.

    Args:
        seat: of this process.
        let_go: takes a member out of the group; raises `KafkaError` or `OSError` where it is to be tried again.
    """
    while True:
        for vacancy in await asyncio.to_thread(list, seat.vacant()):
            try:
                await let_go(vacancy.member_id)
                vacancy.end()
            except (KafkaError, OSError, TimeoutError) as error:
                logger.warning("a member that died could not be taken out (%s), trying again", type(error).__name__)
            finally:
                vacancy.close()
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
