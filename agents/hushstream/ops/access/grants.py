"""The duties that the operator may give to principals besides the roles, and the topics that each duty needs.

By default nobody has a duty.

``requeue-ZONE`` puts refused records on their topics again (``hushstream dead-letters requeue``). It may read that
zone's dead letters, and read and write the inputs of that zone's workers. Writing to an input is a strong right: not
even a worker of that zone has it.

``verify-ROLE`` recomputes what one role published (``hushstream verify --role ROLE``), or exports the logs for that
(``hushstream topics export --role ROLE``). It may read only what that role reads and writes, with marks and states.

``devices`` hands in slots that were made outside of the workers (`hushstream.client.slots`). It may write the topic
from which the collector reads slots, and read the topics that the system publishes for devices. It can write any slot,
so it is meant for a gateway.

``gateway`` answers applications over HTTP (``hushstream worker gateway``). It has the rights of an application: it
writes requests and feedback, and reads answers. If each party has applications of its own, ``gateway.alpha`` is the
account of party alpha.

``export`` copies the whole deployment (``hushstream topics export``): it may read every topic. It sees both sides of
the shuffler, so give it only to somebody who holds the keys of all zones anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.conversation import conversation_of
from hushstream.engine.declare.declaration import System, role_of
from hushstream.engine.declare.flows import writers
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import common_name
from hushstream.systems.catalogue import kinds

Operation = Literal["Read", "Write", "Describe", "DescribeConfigs"]
Rights: TypeAlias = Mapping[str, frozenset[Operation]]
"""Operations by logical topic."""

DEVICES, EXPORT, GATEWAY = "devices", "export", "gateway"
_REQUEUE, _VERIFY = "requeue-", "verify-"
_READ: frozenset[Operation] = frozenset({"Read"})
_WRITE: frozenset[Operation] = frozenset({"Write"})
_BOTH: frozenset[Operation] = frozenset({"Read", "Write"})


def duty_names() -> tuple[str, ...]:
    """The names of all duties, in any system."""
    of_kinds = list(kinds().values())
    zones = dict.fromkeys(topic.zone for kind in of_kinds for topic in kind.topics if topic.holds_dead_letters)
    roles = dict.fromkeys(role.name for kind in of_kinds for role in kind.roles)
    return (*(f"{_REQUEUE}{zone}" for zone in zones), *(f"{_VERIFY}{role}" for role in roles), DEVICES, GATEWAY, EXPORT)


def rights_of(duty: str, system: System) -> Rights:
    """The rights that a duty needs in a deployment.

    Raises:
        HushstreamError: the deployment has no such zone, role or party, takes no slots of devices, or answers no
            requests.
    """
    if duty == EXPORT:
        return dict.fromkeys(system.partitions, _READ)
    if common_name(duty) == GATEWAY:
        return _gateway(duty, system)
    if duty == DEVICES:
        return _devices(system)
    if duty.startswith(_REQUEUE):
        return _requeue(duty.removeprefix(_REQUEUE), system)
    return _verify(duty.removeprefix(_VERIFY), system)


def _gateway(duty: str, system: System) -> Rights:
    talked = conversation_of(system, duty.partition(".")[2])
    answers = {} if talked.answers is None else {talked.answers: _READ}
    return {**dict.fromkeys((talked.requests, *talked.feedback), _WRITE), **answers}


def _devices(system: System) -> Rights:
    if not system.devices:
        raise HushstreamError(
            f"--principals: expected a duty of deployment {system.config.deployment}, got {DEVICES}: it takes no slots "
            f"that devices made"
        )
    return {topic: frozenset((right,)) for topic, right in system.devices.items()}


def _requeue(zone: str, system: System) -> Rights:
    letters = [topic for topic in system.topics if topic.holds_dead_letters and topic.zone == zone]
    refusing = {name for topic in letters for name in writers(topic, system.roles)}
    if not refusing:
        raise HushstreamError(
            f"--principals: expected a zone of deployment {system.config.deployment}, got {_REQUEUE}{zone}: nothing is "
            f"refused there"
        )
    inputs = {topic for role in system.roles if role.name in refusing for topic in role_topics(role, system).inputs}
    return {letters[0].name: _READ, **dict.fromkeys(sorted(inputs), _BOTH)}


def _verify(name: str, system: System) -> Rights:
    if name not in system.role_names:
        raise HushstreamError(
            f"--principals: expected a role of deployment {system.config.deployment} "
            f"({', '.join(system.role_names)}), got {_VERIFY}{name}"
        )
    return dict.fromkeys(sorted(role_topics(role_of(system, name), system).all), _READ)
