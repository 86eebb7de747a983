"""Prints the guarantee of a configuration as text, and writes a deployment's statement as a page of HTML."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hushstream.agents.worker.deployment import artefacts_of, read_config, write_artefact
from hushstream.agents.worker.deployment import load as load_deployment
from hushstream.agents.yaml_file import read_yaml
from hushstream.cli.options import (
    AsJson,
    ConfigFile,
    DeploymentFolder,
    KeyFolder,
    Prefix,
    RunningAt,
    SecurityFile,
    config_file,
    open_with_keys,
    print_json,
    print_text,
)
from hushstream.engine.declare.declaration import DEVICES, Fact
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.privacy.promises.page import (
    Group,
    Line,
    conversion_lines,
    conversion_rows,
    first_screen,
    page_json,
    page_text,
)
from hushstream.privacy.promises.promise import Guarantee, plain
from hushstream.privacy.promises.sentence import ledger_words
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of

if TYPE_CHECKING:
    from hushstream.ops.logs.losses import AcceptedLosses


_OF_A_DEVICE = ("person", "conditions", "not_protected")
"""The groups of a guarantee (`page.groups_of`) that concern the user of a device."""

_LOSSES = "What operators have accepted to lose"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(guarantee)
    app.command()(statement)


def guarantee(
    config: ConfigFile,
    bootstrap: RunningAt = None,
    prefix: Prefix = None,
    security: SecurityFile = None,
    keys: KeyFolder = None,
    edge: Annotated[
        bool, typer.Option("--edge", help="Of devices alone: what leaves one, who sees it, what can go wrong.")
    ] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Also mechanism, conditions, all that is not protected, budget, rho.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show what a configuration guarantees, to whom, over a lifetime.

    Nothing is run. It shows who is protected, epsilon and delta, who is trusted, who reads what, and how long it is
    kept. With --bootstrap it adds the losses that operators of the running deployment have accepted, and whether they
    change the guarantee. With --edge it shows only what concerns users of devices: the guarantee for one of them, what
    leaves a device, and what is not covered.
    """
    path = config_file(config)
    values = read_config(path)
    kind, artefacts = kind_of(values.system), artefacts_of(path.parent)
    promise, budgets = kind.guarantee(values, artefacts), kind.budgets(values, artefacts)
    facts = tuple(kind.facts(values, artefacts))
    if edge:
        facts = tuple(fact for fact in facts if fact.topic == DEVICES)
    if edge and not facts:
        raise HushstreamError("guarantee: expected a deployment whose learners are devices (kind edge), got another")
    losses = _losses(path.parent, bootstrap, prefix, security, keys)
    if json:
        found: dict[str, Any] = {
            "budgets": [one.as_json() for one in budgets],
            "facts": {fact.name: fact.value for fact in facts},
            "conversions": [row.as_json() for row in conversion_rows(promise)],
            "accepted_losses": None if losses is None else plain(losses),
        }
        print_json({**page_json(promise), **found})
        return
    beside = _beside(promise, budgets, facts, losses)
    if edge or details:
        shown = (*_OF_A_DEVICE, DEVICES, _LOSSES) if edge else None
        print_text(page_text(promise, beside, shown))
        return
    print_text(first_screen(promise, [one for one in beside if one.key == _LOSSES]))
    typer.echo(
        f"\nConditions, limits, mechanism and budget: hushstream guarantee {config} --details. As a page of HTML, once"
        " prepared: hushstream statement. What holds of every deployment: PRIVACY.md; whether an epsilon is small:"
        " deploy/docs/which-epsilon.md"
    )


def _losses(
    folder: Path, bootstrap: str | None, prefix: str | None, security: Path | None, keys: Path | None
) -> AcceptedLosses | None:
    """The losses that operators of the running deployment have accepted; None without a broker."""
    if bootstrap is None:
        return None
    from hushstream.ops.logs.losses import accepted_losses

    place = open_with_keys(folder, bootstrap, prefix, security, keys)
    return asyncio.run(accepted_losses(place.connection, place.system, place.keys))


def _beside(
    promise: Guarantee, budgets: Sequence[BudgetFacts], facts: Sequence[Fact], losses: AcceptedLosses | None
) -> list[Group]:
    """The groups after the guarantee, each with a heading of its own."""
    parts = {
        _LOSSES: [] if losses is None else losses.as_lines(),
        "Budget": [*(one.as_text() for one in budgets), ledger_words(promise.unit, promise.unit_prices)],
        "What it gives": _lines(facts, ""),
        DEVICES: _lines(facts, DEVICES),
        "Conversions": conversion_lines(promise, conversion_rows(promise)),
    }
    return [
        Group(title, title, tuple(Line("", "", text, text) for text in texts), plain=True)
        for title, texts in parts.items()
        if texts
    ]


def _lines(facts: Sequence[Fact], topic: str) -> list[str]:
    return [line for fact in facts if fact.topic == topic for line in fact.text.splitlines()]


def statement(
    deployment: DeploymentFolder,
    facts: Annotated[
        Path | None, typer.Option(help="YAML of facts that only you know: operator, contact, legal_basis, ...")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File of the page (default: statement-DEPLOYMENT.html).")] = None,
    bootstrap: RunningAt = None,
    prefix: Prefix = None,
    security: SecurityFile = None,
    keys: KeyFolder = None,
    json: AsJson = False,
) -> None:
    """Write what a data-protection officer needs to know.

    A page, or JSON. With --bootstrap it also lists the losses that operators of the running deployment have accepted.
    """
    from hushstream.ops.statement import OperatorFacts, statement_of

    operator = OperatorFacts.of({} if facts is None else read_yaml(facts))
    losses = _losses(deployment, bootstrap, prefix, security, keys)
    made = statement_of(load_deployment(deployment), operator, losses)
    if json:
        print_json(made.as_json())
    if json and out is None:
        return
    from hushstream.replay.report.parts import statement_page

    path = out or Path(f"statement-{made.deployment}.html")
    _require_own(path, made.deployment)
    write_artefact(path.resolve(), statement_page(made).encode())
    if not json:
        typer.echo(made.sentence)
        typer.echo(str(path))


def _require_own(path: Path, deployment: str) -> None:
    """Refuse to overwrite any file but an earlier statement of the same deployment.

    Raises:
        HushstreamError: there is another file.
    """
    from hushstream.replay.report.parts import is_statement_of

    if not path.is_file():
        return
    if not is_statement_of(path.read_text(encoding="utf-8", errors="replace"), deployment):
        raise HushstreamError(
            f"statement: expected no file at {path}, or an earlier statement of deployment {deployment}, got another "
            f"file, which is kept; name another file with --out"
        )
