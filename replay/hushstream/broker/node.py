"""The state of one broker node, and the client of a request."""

import base64
import secrets
import uuid
from dataclasses import dataclass

from hushstream.broker.disk import Change, Disk, Storage, Volatile
from hushstream.broker.errors import BrokerStartError
from hushstream.broker.groups import GroupCoordinator
from hushstream.broker.store import BrokerSettings, TopicStore

NODE_ID = 0
LEADER_EPOCH = 0


@dataclass(frozen=True, slots=True)
class Client:
    """One connection: the broker's address that the client used (and is told to use), and the client's own."""

    broker_host: str
    broker_port: int
    client_host: str


class Node:
    """The state behind all connections of one broker."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.storage: Storage = Volatile() if settings.data is None else Disk(settings.data)
        self.store = TopicStore(settings, self.storage)
        self.coordinator = GroupCoordinator(settings, self.storage)
        self.closed = False
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # Begin at a random number: a producer that outlives a restart of the broker must not share its id with a new
        # one.
        self._next_producer_id = secrets.randbits(40) * 1000

    async def open(self) -> None:
        """Read what the storage keeps.

        Raises:
            BrokerStartError: it cannot be read, or is another broker's.
        """
        self.storage.open()
        known = list(self.storage.rows("SELECT id, closed FROM cluster"))
        if known:
            ((self.cluster_id, closed),) = known
            self.closed = bool(closed)
        else:
            await self.storage.put(Change([("INSERT INTO cluster VALUES (?, 0)", (self.cluster_id,))]))
        self.store.load()
        self.coordinator.load()

    async def close(self) -> None:
        """Take nothing more, for ever: what is here goes on elsewhere, and two copies would share keys and noise.

        Raises:
            BrokerStartError: the disk refuses.
        """
        self.closed = True
        refused = await self.storage.put(Change([("UPDATE cluster SET closed = 1", ())]))
        if refused:
            raise BrokerStartError(refused)

    def new_producer_id(self) -> int:
        """An id that no other producer of this broker has."""
        self._next_producer_id += 1
        return self._next_producer_id
