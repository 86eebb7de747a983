"""A small deployment on made-up users, and who plays them: for what it stores, and for what dashboards show of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hushstream.client.logs.event_log import EventLog
from hushstream.engine.declare.declaration import System


@dataclass(frozen=True, slots=True)
class Sample:
    """A deployment that is prepared, and not played yet.

    Attributes:
        system: what it runs.
        interactions: how many its users have.
        play: gives them all, through an event log; of one process or of a broker.
    """

    system: System
    interactions: int
    play: Callable[[EventLog], Awaitable[object]]
