"""A command some of whose options are its system's own: it takes them out of its line, wherever they stand in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand


class OwnFlags(TyperCommand):
    """Leaves in the context's ``args`` every ``--flag VALUE`` that is none of the command's.

    Which flags a system has is known only after its studies, which draw pictures, were loaded. All of them take a
    value, so nothing needs to be known of them to tell them from the arguments.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what is the command's."""
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
    """What is not the command's, and what is."""
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
