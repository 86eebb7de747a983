"""What somebody beside the roles may be named for, and which topics each of these duties needs; by default nobody is.

``requeue-ZONE`` puts refused records on their topics again (``hushstream dead-letters requeue``): he may read that
zone's dead letters, and read and write what that zone's workers read. Writing to an input is much to be allowed, and a
worker of that zone may not do it either.

``verify-ROLE`` recomputes what one role published (``hushstream verify --role ROLE``), or takes it home to do so
(``hushstream topics export --role ROLE``): he may read what that role reads and writes, and nothing more.

``export`` copies the whole deployment (``hushstream topics export``): he may read every topic. He sees both sides of
the shuffler, so he is for whoever holds the keys of all zones anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from hushstream.agents.role_topics import role_topics
from hushstream.engine.system import ALL_ROLES, RoleName, System
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import TOPICS, Role

Operation = Literal["Read", "Write", "Describe", "DescribeConfigs"]
Rights: TypeAlias = Mapping[str, frozenset[Operation]]
"""Operations by logical topic."""

_LETTERS = "dead-letters-"
_READ: frozenset[Operation] = frozenset({"Read"})
_BOTH: frozenset[Operation] = frozenset({"Read", "Write"})


def _requeue(letters: str) -> Callable[[System], Rights]:
    def rights(system: System) -> Rights:
        roles = [role for role in system.roles if Role(role) in TOPICS[letters].writers]
        if not roles:
            raise HushstreamError(
                f"--principals: expected a zone of deployment {system.config.deployment}, got "
                f"requeue-{letters.removeprefix(_LETTERS)}: nothing is refused there"
            )
        inputs = {topic for role in roles for topic in role_topics(role, system).inputs}
        return {letters: _READ, **dict.fromkeys(sorted(inputs), _BOTH)}

    return rights


def _verify(role: RoleName) -> Callable[[System], Rights]:
    def rights(system: System) -> Rights:
        if role not in system.roles:
            raise HushstreamError(
                f"--principals: expected a role of deployment {system.config.deployment} ({', '.join(system.roles)}), "
                f"got verify-{role}"
            )
        return dict.fromkeys(sorted(role_topics(role, system).all), _READ)

    return rights


def _export(system: System) -> Rights:
    return dict.fromkeys(system.partitions, _READ)


DUTIES: Mapping[str, Callable[[System], Rights]] = {
    **{f"requeue-{name.removeprefix(_LETTERS)}": _requeue(name) for name in TOPICS if name.startswith(_LETTERS)},
    **{f"verify-{role}": _verify(role) for role in ALL_ROLES},
    "export": _export,
}
"""What each duty needs of a deployment, by its name.

Each raises HushstreamError where a deployment has no such zone or role.
"""
