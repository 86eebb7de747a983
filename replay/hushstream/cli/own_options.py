"""Reads options of a replay that only its system has, from the rest of the command line; the system's studies declare
them.

*Own flags.* A command that also accepts options of its system, anywhere in the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from typer.core import TyperCommand

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


class OwnFlags(TyperCommand):
    """Leaves every ``--flag VALUE`` that is not an option of the command in the context's ``args``.

    The flags of a system are known only after its studies were loaded, which takes long. All of them take a value, so
    this class can tell them from arguments without their names.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments and options of the command itself."""
        known = {flag: takes for one in self.get_params(ctx) for flag, takes in _flags(one).items()}
        own, rest = _split(args, known)
        super().parse_args(ctx, rest)
        ctx.args = own
        return own


def _flags(parameter: Any) -> Mapping[str, bool]:
    """The flags of an option, and whether a value follows."""
    if parameter.param_type_name != "option":
        return {}
    takes = not (parameter.is_flag or parameter.count)
    return dict.fromkeys((*parameter.opts, *parameter.secondary_opts), takes)


def _split(args: list[str], known: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Split a command line into the system's options, and the command's own arguments and options."""
    own: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        flag, equals, _ = word.partition("=")
        target = rest if flag in known or not flag.startswith("--") else own
        target.append(word)
        if not equals and known.get(flag, target is own):
            target += [value for value in (next(words, None),) if value is not None]
    return own, rest
