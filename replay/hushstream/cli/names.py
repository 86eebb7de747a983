"""Names that systems give, as arguments and options: one that no system has is wrong usage, as a wrong choice is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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


def _kinds() -> Iterable[Kind]:
    """Every system; a command's help needs none, and they take seconds to import."""
    from hushstream.systems.catalogue import kinds

    return kinds().values()


def role_names() -> tuple[str, ...]:
    """Every role, in any system."""
    return tuple(dict.fromkeys(role.name for kind in _kinds() for role in kind.roles))


def worker_names() -> tuple[str, ...]:
    """Everything that ``hushstream worker`` runs: every role, `GATEWAY` and `AUDITOR`."""
    return (*role_names(), GATEWAY, AUDITOR)


def roles_or_all() -> tuple[str, ...]:
    """Every role, and `ALL`."""
    return (*role_names(), ALL)


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


def one_of(names: Callable[[], Collection[str]]) -> Callable[[Any], Any]:
    """A callback for a parameter, which may be given several times, whose values are among ``names``.

    What each party of a deployment has of its own is named with the party: ``learner.alpha``.
    """

    def check(given: Any) -> Any:
        from hushstream.schemas.topics import common_name

        for name in (given,) if isinstance(given, str) else given or ():
            if common_name(name) not in names():
                raise typer.BadParameter(f"expected one of {', '.join(names())}, got {name!r}")
        return given

    return check
