"""Commands about the users of a deployment: erasing one user, and a load test with very many."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hushstream.cli.options import AsJson, show
from hushstream.cli.places import Place, at_place
from hushstream.cli.progress import working
from hushstream.privacy.amounts import count_text

_GIGABYTE = 1 << 30


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(forget)
    app.command()(soak)


@at_place
def forget(
    place: Place,
    user: Annotated[str, typer.Argument(help="The account; - reads it from standard input.")],
    export: Annotated[
        Path | None, typer.Option(help="Only erase the user's records in this export, made after the tombstone.")
    ] = None,
    party: Annotated[str, typer.Option(help="Name of the account's party, if each party has its own users.")] = "",
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until the tombstone is folded.")] = 10.0,
    json: AsJson = False,
) -> None:
    """Erase a user's state, and say what stays and what is deleted later; needs the client's rights."""
    from hushstream.ops.forget import erase_export
    from hushstream.ops.forget import forget as append

    name = sys.stdin.readline().rstrip("\n") if user == "-" else user
    if export is not None:
        number = erase_export(export, place.system, name, party)
        text = f"{export}: {count_text(number, 'record')} erased; verify reports what was made from them as erased"
        show({"export": str(export), "records": number}, json, text)
        return
    with working("erasing, and waiting until it is folded", json):
        done = append(place.connection, place.system, name, wait, party)
    show(done.as_json(), json, done.as_text())
    raise typer.Exit(1 if done.folded is False and wait else 0)


def soak(
    users: Annotated[int, typer.Option(min=1, help="Number of distinct users.")] = 1_000_000,
    visits: Annotated[int, typer.Option(min=1, help="Visits of each user.")] = 2,
    interactions: Annotated[int, typer.Option(min=1, help="Interactions of each visit.")] = 5,
    resident: Annotated[int, typer.Option(min=0, help="Users in memory, the others on disk; 0 for all.")] = 100_000,
    dimension: Annotated[int, typer.Option(min=2, max=4096, help="Number of entries of a context.")] = 10,
    arms: Annotated[int, typer.Option(min=2, max=65536, help="Arms.")] = 10,
    cap: Annotated[float, typer.Option(min=0.1, help="Gigabytes that the process may take.")] = 4.0,
    json: AsJson = False,
) -> None:
    """Give many users their interactions on one learner, and print its memory against a cap."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from hushstream.replay.study import studies

    measure = next(study.soak for study in studies().values() if study.soak is not None)
    sizes = (users, visits, interactions, dimension, arms, resident or None, round(cap * _GIGABYTE))
    document, table = measure(sizes, lambda text: typer.echo(text, err=True))
    show(document, json, table)
