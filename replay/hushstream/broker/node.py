"""The state of one broker node, and the client of a request."""

import base64
import secrets
import uuid
from dataclasses import dataclass

from hushstream.broker.coordinator import GroupCoordinator
from hushstream.broker.settings import BrokerSettings
from hushstream.broker.store import TopicStore

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
        self.store = TopicStore(settings)
        self.coordinator = GroupCoordinator(settings)
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # Begin at a random number: a producer that outlives a restart of the broker must not share its id with a new
        # one.
        self._next_producer_id = secrets.randbits(40) * 1000

    def new_producer_id(self) -> int:
        """An id that no other producer of this broker has."""
        self._next_producer_id += 1
        return self._next_producer_id
