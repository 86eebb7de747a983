"""Makes a deployment's statement as one page of HTML that loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import escape

from hushstream.ops.statement.statement import Statement
from hushstream.replay.report.frame import Block, Facts, Page, Section, html, page_title
from hushstream.replay.report.parts import odds_blocks, with_meanings

_KIND = "Privacy statement"
_EXAMPLE = "What that means, by an example"


def statement_page(statement: Statement) -> str:
    """The page; equal statements give equal bytes."""
    warnings = [(f"{_capital(statement.warning)}.", "")] if statement.warning else []
    parts = [(one.title, one.facts) for one in statement.sections]
    return html(
        Page(
            kind=_KIND,
            title=statement.deployment,
            sentence=statement.sentence,
            marks=(*with_meanings(statement.marks), *warnings),
            outcome=(f"{statement.verdict}.",),
            sections=tuple(
                Section(f"part-{place}", title, (*_odds(statement, title), _facts(facts)))
                for place, (title, facts) in enumerate(
                    [*parts, ("Fields of a public registry", tuple(statement.registry.items()))], start=1
                )
            ),
            provenance=(
                ("Computed from", "the deployment's configuration, and entries of its operator"),
                ("Configuration digest", statement.config_digest),
            ),
        )
    )


def is_statement_of(text: str, deployment: str) -> bool:
    """Whether a file's text is a page that `statement_page` made of this deployment."""
    return f"<title>{escape(page_title(deployment, _KIND))}</title>" in text


def _odds(statement: Statement, title: str) -> list[Block]:
    return odds_blocks(statement.odds) if title == _EXAMPLE else []


def _facts(facts: Iterable[tuple[str, str]]) -> Facts:
    return Facts(tuple((_capital(name), text) for name, text in facts))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
