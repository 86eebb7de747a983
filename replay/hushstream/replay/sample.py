"""A small deployment with simulated users, to measure what it stores and to show it on dashboards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hushstream.client.logs.event_log import EventLog
from hushstream.engine.declare.declaration import System


@dataclass(frozen=True, slots=True)
class Sample:
    """A deployment that is prepared and has not run yet.

    Attributes:
        system: the system of the deployment.
        interactions: how many interactions its users have.
        play: plays all interactions through an event log, of the direct runner or of a broker.
    """

    system: System
    interactions: int
    play: Callable[[EventLog], Awaitable[object]]
