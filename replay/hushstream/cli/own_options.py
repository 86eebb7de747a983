"""Reads options of a replay that only its system has, from the rest of the command line; the system's studies declare
them."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.replay.study import Study


def own_options(study: Study, left: Sequence[str]) -> dict[str, Any]:
    """Read the options that only one system has, by their names.

    Args:
        study: the study of the system.
        left: the rest of the command line: ``--flag VALUE`` or ``--flag=VALUE``.

    Raises:
        HushstreamError: the system has no such option, or a value has a wrong type.
    """
    names = {flag: name for name, flag in study.flags.items()}
    hints = get_type_hints(study.options)
    found: dict[str, Any] = {}
    for flag, text in _pairs(left):
        if flag not in names:
            raise HushstreamError(
                f"replay {study.system}: expected no option {flag}{_owner(flag)}; its own are {', '.join(names)}"
            )
        if text is None:
            raise HushstreamError(f"{flag}: expected a value, got none")
        name = names[flag]
        value = _read(flag, text, hints[name])
        found[name] = (*found.get(name, ()), value) if _is_tuple(hints[name]) else value
    return found


def _pairs(left: Sequence[str]) -> list[tuple[str, str | None]]:
    pairs: list[tuple[str, str | None]] = []
    words = iter(left)
    for word in words:
        if not word.startswith("--"):
            raise HushstreamError(f"replay: expected options, got {word!r}")
        flag, equals, value = word.partition("=")
        pairs.append((flag, value if equals else next(words, None)))
    return pairs


def _owner(flag: str) -> str:
    """Say which systems have an option; empty if none has it."""
    from hushstream.replay.study import studies

    owners = [study.system for study in studies().values() if flag in study.flags.values()]
    return f", which is of {' and '.join(owners)}" if owners else ""


def _is_tuple(hint: Any) -> bool:
    return get_origin(hint) is tuple


def _read(flag: str, text: str, hint: Any) -> Any:
    kinds = [kind for kind in (get_args(hint) if _is_choice(hint) else (hint,)) if kind is not type(None)]
    kind = get_args(kinds[0])[0] if _is_tuple(kinds[0]) else kinds[0]
    try:
        return kind(text)
    except ValueError:
        words = {int: "a whole number", float: "a number"}
        raise HushstreamError(f"{flag}: expected {words.get(kind, kind.__name__)}, got {text!r}") from None


def _is_choice(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)
