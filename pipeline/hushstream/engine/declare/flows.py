"""Writers and readers of each topic, from a system's declaration."""

from __future__ import annotations

from collections.abc import Iterable

from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import Role
from hushstream.schemas.topics import CLIENT, OPERATOR, Topic, of_party


def writes_of(role: Role, system: System) -> tuple[str, ...]:
    """The topics that a role writes in a deployment, without its journal."""
    existing = {topic.name for topic in system.topics}
    return tuple(name for name in role.writes if name in existing)


def inputs_of(role: Role, system: System) -> tuple[str, ...]:
    """The inputs that a role has in a deployment."""
    existing = {topic.name for topic in system.topics}
    return tuple(name for name in role.inputs if name in existing)


def writers(topic: Topic, roles: Iterable[Role]) -> tuple[str, ...]:
    """The writers of a topic, in the order in which data flows."""
    found = [role.name for role in roles if topic.name in _written(role) or _ticks(role, topic)]
    return tuple(dict.fromkeys(([topic.application] if topic.client in ("writes", "changes") else []) + found))


def readers(topic: Topic, roles: Iterable[Role]) -> tuple[str, ...]:
    """The readers of a topic; the writer of a journal is also its reader."""
    found = [role.name for role in roles if topic.name in (*role.own, *role.inputs, *role.broadcasts)]
    clients = [topic.application] if topic.client in ("reads", "changes") else []
    if topic.client == "changes" and topic.party:
        # What one party is shown may be another's item.
        clients = [of_party(CLIENT, role.party) for role in roles if role.party]
    return tuple(dict.fromkeys(clients + found + ([] if topic.reader is None else [topic.reader])))


def beside_workers(system: System) -> tuple[str, ...]:
    """Those who write or read topics of a deployment and run no worker."""
    readers = (topic.reader for topic in system.topics if topic.reader is not None)
    clients = [of_party(CLIENT, party) for party in system.parties] or [CLIENT]
    return tuple(dict.fromkeys((*clients, OPERATOR, *readers)))


def _written(role: Role) -> tuple[str, ...]:
    return (*role.own, *role.writes, *role.writes_abroad)


def _ticks(role: Role, topic: Topic) -> bool:
    return topic.ticks and topic.name in role.inputs
