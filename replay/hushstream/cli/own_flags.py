"""A command that also accepts options of its system, anywhere in the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand


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
