"""A deployment's statement as one page of HTML that asks for nothing from elsewhere."""

from __future__ import annotations

from importlib.resources import files

import jinja2
from markupsafe import Markup

from hushstream.ops.statement import Statement
from hushstream.replay.report.promised import promised


def statement_page(statement: Statement) -> str:
    """The page; equal statements give equal bytes."""
    package = files("hushstream.replay.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(package.joinpath("statement.html.j2").read_text(encoding="utf-8"))
    css = Markup(package.joinpath("page.css").read_text(encoding="utf-8"))
    return template.render(css=css, statement=statement, promised=promised(statement.sentence, statement.odds))
