"""Directives whose content is made from the code when the site is built, so that pages are always up to date.

``{commands}``
    every command of ``hushstream``: what it does, its usage, its arguments and options.
``{settings} SYSTEM``
    every setting of a system's configuration: type, default, unit and meaning.
``{shared-settings}``
    the settings that more than one system has, with the systems.
``{about} SYSTEM``
    what a system's declaration says of it, with its roles.
``{own-options}``
    what each system takes in a replay beside the options of every system.
``{said} MODULE``
    what a module says of itself.
``{gateway-problems}``
    every problem that the gateway answers with: its code, its status and what to do.
``{metrics}``
    every metric that workers, gateways and ``verify --follow`` register: its class, its labels, what it says.
``{feature-kinds}``
    every kind of feature: settings, values, what becomes of others, size on the wire and in the sums.
``{guarantee} PATH``
    what ``hushstream guarantee`` prints first of a configuration, in a box; its content, the first sentence, is for
    readers of the plain page.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command

from hushstream.agents.observe.metrics import METRICS
from hushstream.agents.worker.deployment import artefacts_of, read_config
from hushstream.api.calls import own_options
from hushstream.cli.configure.config_options import Setting, settings, shared
from hushstream.cli.main import app as command_line
from hushstream.engine.declare.declaration import Role
from hushstream.features.reference import kind_rows
from hushstream.gateway.metrics import GATEWAY_METRICS
from hushstream.gateway.problems import table as problem_table
from hushstream.ops.check.follow import AUDIT_METRICS
from hushstream.privacy.promises.page import groups_of
from hushstream.replay.study import studies
from hushstream.schemas.topics import PUBLISHED
from hushstream.systems.catalogue import kind_of

_MADE = "from-code"
"""The class of pages that hold such tables alone, and of their tables."""


class FromCode(SphinxDirective):
    """A directive that writes Markdown; ``alone``: its page has no tables but such, without heads on narrow screens."""

    alone = False

    def text(self) -> str:
        """The Markdown of the directive."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parse the Markdown as if it stood in the page."""
        self.state.document[_MADE] = self.state.document.get(_MADE, False) or self.alone
        return self.parse_text_to_nodes(self.text(), allow_section_headings=True)


class Settings(FromCode):
    """See the module."""

    required_arguments = 1
    alone = True

    def text(self) -> str:
        """A table."""
        rows = [_row(one) for one in settings(kind_of(self.arguments[0]))]
        return "\n".join(["| setting | type | default | unit | meaning |", "| --- | --- | --- | --- | --- |", *rows])


def _row(one: Setting) -> str:
    default = "**required**" if one.default is None else _code(one.default)
    return f"| {_code(one.name)} | {_plain(one.type)} | {default} | {_plain(one.unit)} | {_plain(one.meaning)} |"


class SharedSettings(FromCode):
    """See the module."""

    alone = True

    def text(self) -> str:
        """A table of the keys that more than one system has."""
        rows = [f"| {_code(name)} | {_plain(meaning)} | {', '.join(systems)} |" for name, meaning, systems in shared()]
        return "\n".join(["| setting | meaning | systems |", "| --- | --- | --- |", *rows])


class About(FromCode):
    """See the module."""

    required_arguments = 1

    def text(self) -> str:
        """A paragraph and a table of roles."""
        kind = kind_of(self.arguments[0])
        names = dict.fromkeys(role.name for role in kind.roles)
        rows = [_role(tuple(role for role in kind.roles if role.name == name)) for name in names]
        summary = _plain(kind.summary[:1].upper() + kind.summary[1:])
        return "\n".join([f"{summary}.", "", "| role | zone | reads | writes |", "| --- | --- | --- | --- |", *rows])


def _role(forms: tuple[Role, ...]) -> str:
    """A row of a role, in all forms that a configuration may give it."""
    reads = dict.fromkeys(name for role in forms for name in (*role.inputs, *role.broadcasts))
    writes = dict.fromkeys(name for role in forms for name in (role.journal, *role.writes))
    zone = PUBLISHED if forms[0].zone == "server" else forms[0].zone
    return f"| {_code(forms[0].name)} | {zone} | {_codes(reads)} | {_codes(writes)} |"


class FeatureKinds(FromCode):
    """See the module."""

    def text(self) -> str:
        """A table."""
        names = ("kind", "settings", "takes", "missing", "anything else", "bytes", "cells", "cells of one value")
        rows = [
            f"| {' | '.join(map(str, (_code(one.kind), *map(_plain, one[1:5]), *one[5:])))} |" for one in kind_rows()
        ]
        return "\n".join([f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}", *rows])


class OwnOptions(FromCode):
    """See the module."""

    alone = True

    def text(self) -> str:
        """A section for each system."""
        return "\n".join(line for name in studies() for line in _own(name))


def _own(system: str) -> Iterator[str]:
    yield from (f"### {system}", "", "| option | meaning |", "| --- | --- |")
    yield from (f"| {_code(name)} | {_plain(meaning)} |" for name, meaning in own_options(system).items())
    yield ""


class Said(FromCode):
    """See the module."""

    required_arguments = 1

    def text(self) -> str:
        """The paragraphs of a module's docstring; indented parts are not changed."""
        said = inspect.getdoc(import_module(self.arguments[0])) or ""
        return "\n\n".join(_part(part) for part in said.split("\n\n"))


def _part(part: str) -> str:
    return f"```text\n{_dedented(part)}\n```" if part.startswith("    ") else _plain(part)


def _dedented(part: str) -> str:
    return "\n".join(line[4:].replace("``", "") for line in part.splitlines())


class Problems(FromCode):
    """See the module."""

    def text(self) -> str:
        """A table."""
        return problem_table()


class Metrics(FromCode):
    """See the module."""

    def text(self) -> str:
        """One row a metric, in the order of the declarations."""
        rows = ["| metric | kind | class | labels | what it says |", "|---|---|---|---|---|"]
        for spec in (*METRICS, *GATEWAY_METRICS, *AUDIT_METRICS):
            labels = ", ".join(f"`{label}`" for label in spec.labels)
            rows.append(f"| `{spec.name}` | {spec.kind} | {spec.metric_class} | {labels} | {spec.help} |")
        return "\n".join(rows)


class Promised(FromCode):
    """See the module."""

    required_arguments = 1
    has_content = True

    def text(self) -> str:
        """A quotation."""
        _, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(path)
        config = read_config(Path(path))
        promise = kind_of(config.system).guarantee(config, artefacts_of(Path(path).parent))
        (short,) = (group for group in groups_of(promise) if group.key == "short")
        lines = [
            _plain(promise.sentence()),
            "",
            *(f"* **{line.name}**: {_plain(line.sentence)}" for line in short.lines),
        ]
        return "\n".join(f"> {line}" for line in lines)


class Commands(FromCode):
    """See the module."""

    alone = True

    def text(self) -> str:
        """A section for each command."""
        root = get_command(command_line)
        return "\n".join(line for name, one in root.commands.items() for line in _command(f"hushstream {name}", one, 2))


def _command(path: str, command: Any, level: int) -> Iterator[str]:
    """The help of a command; for a group, of each of its commands."""
    if command.hidden:
        return
    yield from (f"{'#' * level} {path}", "", _plain(command.help or ""), "")
    below = getattr(command, "commands", {})
    if not below:
        yield from _usage(path, command)
    for name, one in below.items():
        yield from _command(f"{path} {name}", one, level + 1)


def _usage(path: str, command: Any) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    if context.ignore_unknown_options and not command.params:
        yield from ("```text", _own_help(path), "```", "")
        return
    yield from ("```text", " ".join([path, *command.collect_usage_pieces(context)]), "```", "")
    records = [one.get_help_record(context) for one in command.get_params(context) if one.name != "help"]
    rows = [_parameter(*record) for record in records if record is not None]
    if rows:
        yield from ("| argument or option | meaning |", "| --- | --- |", *rows, "")


def _own_help(path: str) -> str:
    """The help of a command that parses its own options."""
    found = io.StringIO()
    with contextlib.redirect_stdout(found), contextlib.suppress(SystemExit):
        command_line([*path.split()[1:], "--help"], prog_name="hushstream")
    return found.getvalue().strip()


def _parameter(names: str, text: str) -> str:
    """A row of an argument or option: its type and default stand in brackets after the meaning."""
    meaning, _, facts = text.partition("  [")
    return f"| {_code(names)} | {_plain(meaning)}{f' *{_plain(facts[:-1])}*' if facts else ''} |"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(_code(name) for name in names)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _plain(text: str) -> str:
    """Text of a docstring as Markdown: text in backticks stays code, and no other character has a meaning.

    Paragraphs remain paragraphs if there are several.
    """
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.replace("``", "`"))]
    return "\n\n".join(_escaped(part) for part in paragraphs if part)


def _escaped(text: str) -> str:
    parts = text.split("`")
    plain = [part if number % 2 else re.sub(r"([\\<>*_\[\]#$])", r"\\\1", part) for number, part in enumerate(parts)]
    return "`".join(plain).replace("|", "\\|")


def _mark_tables(app: Sphinx, doctree: nodes.document) -> None:
    """Mark the tables of these pages for the style sheet; the parser inserts sections outside of the directive."""
    if doctree.get(_MADE):
        for table in doctree.findall(nodes.table):
            table["classes"].append(_MADE)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives."""
    made = {
        "commands": Commands,
        "settings": Settings,
        "shared-settings": SharedSettings,
        "about": About,
        "own-options": OwnOptions,
        "feature-kinds": FeatureKinds,
        "said": Said,
        "gateway-problems": Problems,
        "metrics": Metrics,
        "guarantee": Promised,
    }
    for name, directive in made.items():
        app.add_directive(name, directive)
    app.connect("doctree-read", _mark_tables)
    return {"parallel_read_safe": True}
