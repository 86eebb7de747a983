"""Arguments and options whose values are names of roles, zones or keys of any system; an unknown name is wrong
usage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from hushstream.engine.declare.declaration import Kind

ALL = "all"
"""Used in place of a role: all roles, for the owner of all keys."""


GATEWAY = "gateway"
"""Used in place of a role: the gateway, which answers applications over HTTP (`hushstream.gateway`)."""


AUDITOR = "auditor"
"""Used in place of a role: the auditor, which checks what a role published (`hushstream.ops.audit`)."""


def _kinds() -> Iterator[Kind]:
    """Yield every system, importing each only when needed: a role's name mostly needs one, and help none."""
    from hushstream.systems.catalogue import each_kind

    return each_kind()


def role_names() -> Iterator[str]:
    """Every role, in any system."""
    return (role.name for kind in _kinds() for role in kind.roles)


def worker_names() -> Iterator[str]:
    """Everything that ``hushstream worker`` runs: every role, `GATEWAY` and `AUDITOR`."""
    return chain((GATEWAY, AUDITOR), role_names())


def roles_or_all() -> Iterator[str]:
    """Every role, and `ALL`."""
    return chain((ALL,), role_names())


def storage_zones() -> tuple[str, ...]:
    """The names of storage key files, in any system."""
    return tuple(dict.fromkeys(role.storage_zone for kind in _kinds() for role in kind.roles))


def key_files() -> tuple[str, ...]:
    """The names of all key files that a deployment may have: of zones, and of their storage keys."""
    zones = dict.fromkeys(zone for kind in _kinds() for role in kind.roles for zone in role.key_zones)
    return (*zones, *storage_zones())


def letter_zones() -> tuple[str, ...]:
    """Every zone that has dead letters, in any system."""
    topics = (topic for kind in _kinds() for topic in kind.topics)
    return tuple(dict.fromkeys(topic.zone for topic in topics if topic.holds_dead_letters))


def one_of(names: Callable[[], Iterable[str]]) -> Callable[[Any], Any]:
    """A callback for a parameter, which may be given several times, whose values are among ``names``.

    Names of single parties end with the party: ``learner.alpha``.
    """

    def check(given: Any) -> Any:
        from hushstream.schemas.topics import common_name

        for name in (given,) if isinstance(given, str) else given or ():
            if common_name(name) not in names():
                why = ", a zone without a key" if names is key_files and common_name(name) in letter_zones() else ""
                raise typer.BadParameter(f"expected one of {', '.join(dict.fromkeys(names()))}, got {name!r}{why}")
        return given

    return check
