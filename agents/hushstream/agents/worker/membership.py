"""Keeps a killed worker's place in its group for the same worker when it is started again, or gives it up at once.

Without this, a killed worker holds its partitions until its session ends. A supervisor that starts it again at once
causes a rebalance, and that waits for the dead member, too. So each member of a group keeps a locked file in its data
directory. The file's name is the member's instance id in the group (static membership, KIP-345), and its content is
the member id. The operating system releases the lock when the process ends, in whatever way.

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

from aiokafka.errors import KafkaError, UnknownMemberIdError, for_code
from aiokafka.protocol.group import LeaveGroupRequest

from hushstream.agents.datadir import owner_only
from hushstream.agents.kafka.administration import administering
from hushstream.agents.security import Cluster

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often a worker checks whether another has died."""


_FOLDER, _SUFFIX = "members", ".member"


class GroupPlace:
    """This process's place in its group, and the places of other processes that share the data directory."""

    def __init__(self, datadir: Path, group: str) -> None:
        """Name the folder of the files; nothing is written yet.

        Args:
            datadir: the worker's data directory.
            group: the consumer group.
        """
        self._folder = datadir / _FOLDER / group
        self._prefix = f"{socket.gethostname()}."
        self._own: LockedPlace | None = None
        self._member_id = ""

    def claim(self) -> str:
        """Lock the place of a process of this machine that has died, or a new one; returns its instance id.

        Raises:
            OSError: the file cannot be written or locked.
        """
        if self._own is None:
            self._own = next(self.abandoned(), None) or self._new()
            self._member_id = self._own.member_id
        return self._own.path.name.removeprefix(self._prefix).removesuffix(_SUFFIX)

    def record_member(self, member_id: str) -> None:
        """Write this process's current member id into the file of its place.

        Raises:
            OSError: the file cannot be written.
        """
        if self._own is None or not member_id or member_id == self._member_id:
            return
        self._own.note(member_id)
        self._member_id = member_id

    def leave(self) -> None:
        """Delete the file of the place: the process has left the group."""
        if self._own is not None:
            self._own.end()
            self._own = None

    def abandoned(self) -> Iterator[LockedPlace]:
        """The places of this machine's processes that ended without leaving, each locked; the caller closes them."""
        for path in sorted(self._folder.glob(f"{self._prefix}*{_SUFFIX}")):
            if (found := _lock(path)) is not None:
                yield found

    def _new(self) -> LockedPlace:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / f"{self._prefix}{uuid.uuid4().hex}{_SUFFIX}"
        unready = path.with_name(f".{path.name}")
        # Only the owner may open the file: another user who locked it would block this place for ever.
        file = open(unready, "w+", encoding="utf-8", opener=owner_only)  # noqa: SIM115 - it stays open, as its lock does
        # Lock it before it gets its name: no other process ever sees it unlocked.
        fcntl.flock(file, fcntl.LOCK_EX)
        unready.replace(path)
        return LockedPlace(path, file, "")


@dataclass(slots=True)
class LockedPlace:
    """The locked file of one place in a group: this process's place, or that of a process that has died."""

    path: Path
    file: IO[str]
    member_id: str

    def note(self, member_id: str) -> None:
        """Write the member id of the process that has the place now."""
        self.file.seek(0)
        self.file.write(member_id)
        self.file.truncate()
        self.file.flush()

    def end(self) -> None:
        """Delete the file while it is locked, so that nobody takes the place over in the meantime."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Unlock the place, so that another process can take it."""
        self.file.close()


def is_taken(datadir: Path) -> bool:
    """Whether a running process has a place in a data directory, in any group."""
    taken = False
    for path in (datadir / _FOLDER).glob(f"*/*{_SUFFIX}"):
        found = _lock(path)
        taken = taken or found is None
        if found is not None:
            found.close()
    return taken


def _lock(path: Path) -> LockedPlace | None:
    """Lock a place that nobody has locked; None if it is locked, or if the file cannot be locked at all."""
    try:
        file = path.open("r+", encoding="utf-8")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that held the lock until now may have deleted the file: then this lock protects nothing.
        if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return LockedPlace(path, file, file.read())
    except OSError:
        pass
    file.close()
    return None


async def watch_places(own: GroupPlace, remove_member: Callable[[str], Awaitable[None]]) -> None:
    """Check the other members for ever, and remove those that have died from the group.

    Args:
        own: this process's place.
        remove_member: removes a member from the group; raises `KafkaError` or `OSError` if it is to be tried again.
    """
    while True:
        for place in await asyncio.to_thread(list, own.abandoned()):
            try:
                await remove_member(place.member_id)
                place.end()
            except (KafkaError, OSError, TimeoutError) as error:
                logger.warning("a dead member could not be removed (%s), trying again", type(error).__name__)
            finally:
                place.close()
        await asyncio.sleep(LOOK_SECONDS)


async def remove_member(cluster: Cluster, group: str, member_id: str) -> None:
    """Remove a member from a group, as the member does itself when it ends cleanly.

    Raises:
        KafkaError, OSError, TimeoutError: no broker answers, or it refuses.
    """
    async with administering(cluster) as admin:
        coordinator = await admin.find_coordinator(group)
        answer = await admin._send_request_to_node(coordinator, LeaveGroupRequest(group, member_id))
    if answer.error_code and answer.error_code != UnknownMemberIdError.errno:
        error: KafkaError = for_code(answer.error_code)(group)
        raise error
    logger.info("a dead member was removed from group %s", group)
