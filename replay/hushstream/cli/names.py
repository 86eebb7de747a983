"""Names that systems give, as arguments and options: one that no system has is wrong usage, as a wrong choice is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from hushstream.engine.declare.declaration import Kind

ALL = "all"
"""In place of a role: all of them, for the owner of all keys."""


GATEWAY = "gateway"
"""In place of a role: applications' calls over HTTP (`hushstream.gateway`)."""


AUDITOR = "auditor"
"""In place of a role: checks what a role published (`hushstream.ops.audit`)."""


def _kinds() -> Iterator[Kind]:
    """Every system, each imported when its turn comes: a command's help needs none, and a role's name mostly one."""
    from hushstream.systems.catalogue import in_turn

    return in_turn()


def role_names() -> Iterator[str]:
    """Every role, in any system."""
    return (role.name for kind in _kinds() for role in kind.roles)


def worker_names() -> Iterator[str]:
    """Everything that ``hushstream worker`` runs: every role, `GATEWAY` and `AUDITOR`."""
    return chain((GATEWAY, AUDITOR), role_names())


def roles_or_all() -> Iterator[str]:
    """Every role, and `ALL`."""
    return chain((ALL,), role_names())


def key_zones() -> tuple[str, ...]:
    """Every zone that has a key, in any system."""
    return tuple(dict.fromkeys(zone for kind in _kinds() for role in kind.roles for zone in role.key_zones))


def storage_zones() -> tuple[str, ...]:
    """The names under which storage keys lie among key files, in any system."""
    return tuple(dict.fromkeys(role.storage_zone for kind in _kinds() for role in kind.roles))


def key_files() -> tuple[str, ...]:
    """The names of all key files that a deployment may have: of zones, and of their storage keys."""
    return (*key_zones(), *storage_zones())


def letter_zones() -> tuple[str, ...]:
    """Every zone that has dead letters, in any system."""
    topics = (topic for kind in _kinds() for topic in kind.topics)
    return tuple(dict.fromkeys(topic.zone for topic in topics if topic.holds_dead_letters))


def one_of(names: Callable[[], Iterable[str]]) -> Callable[[Any], Any]:
    """A callback for a parameter, which may be given several times, whose values are among ``names``.

    What each party of a deployment has of its own is named with the party: ``learner.alpha``.
    """

    def check(given: Any) -> Any:
        from hushstream.schemas.topics import common_name

        for name in (given,) if isinstance(given, str) else given or ():
            if common_name(name) not in names():
                raise typer.BadParameter(f"expected one of {', '.join(dict.fromkeys(names()))}, got {name!r}")
        return given

    return check
