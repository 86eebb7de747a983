"""Every system: the built-in ones, and those that other packages offer by an entry point.

Another package offers one by an entry point of the group ``hushstream.systems`` that names a `Kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from hushstream.engine.declare.declaration import Kind
from hushstream.engine.declare.role import DeclarationError
from hushstream.systems.bgt.system import KIND as BGT
from hushstream.systems.colin.system import KIND as COLIN
from hushstream.systems.p2b.system import KIND as P2B
from hushstream.systems.pdap.system import KIND as PDAP
from hushstream.systems.pdol.system import KIND as PDOL

GROUP = "hushstream.systems"

BUILTIN = (P2B, COLIN, PDAP, PDOL, BGT)

DEFAULT = BUILTIN[0].name
"""What a configuration, or a run, is of that names no system."""


@cache
def kinds() -> Mapping[str, Kind]:
    """Every system by name, the built-in ones first.

    Raises:
        DeclarationError: two packages claim one name, or an entry point names something else.
    """
    found = {kind.name: kind for kind in BUILTIN}
    for entry in sorted(entry_points(group=GROUP)):
        offered = entry.load()
        if not isinstance(offered, Kind):
            raise DeclarationError(
                f"entry point {entry.name} of {GROUP}: expected a Kind, got {type(offered).__name__}"
            )
        if found.setdefault(offered.name, offered) is not offered:
            raise DeclarationError(f"two packages offer a system named {offered.name!r}; remove one of them")
    return found


def kind_of(name: object) -> Kind:
    """The system of this name.

    Raises:
        DeclarationError: there is none.
    """
    known = kinds()
    if not isinstance(name, str) or name not in known:
        raise DeclarationError(f"system: expected one of {', '.join(known)}, got {name!r}")
    return known[name]
