"""The commands that change the catalogue of a deployment whose items have names."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from csv import DictReader
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hushstream.cli.options import AsJson, Place, as_client, show
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.client import Item
    from hushstream.client.items import Items, Put
    from hushstream.features.schema import FeatureSchema

_STDIN, _TABLE = "-", ".csv"
_OTHERS = "title, features, pinned and cap"
_KEYS = frozenset({"item", "title", "features", "pinned", "cap"})

ItemId = Annotated[str, typer.Argument(help="Id of the item, as the application names it; 1 to 128 bytes.")]
Party = Annotated[str, typer.Option(help="The vendor of the items, if vendors share a deployment.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Change the catalogue while it runs.\n\nItems have names there, and changes are public records, so they "
        "need the client's rights. No worker restarts, and no epsilon is spent.",
    )
    group.command("list")(list_items)
    group.command()(add)
    group.command()(retire)
    group.command("import")(import_items)
    group.command()(export)
    app.add_typer(group, name="items")


@as_client
def list_items(place: Place, party: Party = "", json: AsJson = False) -> None:
    """List the offered items, and the retired ones whose rows have no other item yet.

    If the deployment began with a model, items of this model that have no row are listed at the end (with --json they
    have version 0): they were never added, or have lost their rows.
    """

    from hushstream.client.items import printable

    async def read(items: Items) -> tuple[Sequence[Item], Sequence[str]]:
        return await items.list(), items.left_out()

    found, left_out = _with(place, party, read)
    lines = [
        f"{one.item}  {one.title or '-'}  {'offered' if one.offered else 'retired'}, since version {one.since}"
        + (", pinned" if one.pinned else "")
        + (f", at most {one.cap.shows} in {one.cap.within_seconds} s for a user" if one.cap else "")
        for one in found
    ]
    if left_out:
        lines.append(f"Items of the deployment's initial model that have no row here: {', '.join(left_out)}")
    said = [_said(one) | {"offered": one.offered, "version": one.version, "since": one.since} for one in found]
    said += [{"item": one, "title": "", "features": {}, "offered": False, "version": 0, "since": 0} for one in left_out]
    show(said, json, "\n".join(printable(line) for line in lines))


@as_client
def add(
    place: Place,
    items: Annotated[list[str], typer.Argument(help="Ids as the application names them; 1 to 128 bytes each.")],
    title: Annotated[str, typer.Option(help="The name that people read; only for one item.")] = "",
    features: Annotated[str, typer.Option(help="Its public features: a JSON object of values by name.")] = "",
    pinned: Annotated[bool, typer.Option("--pinned", help="Show them before all items that are not pinned.")] = False,
    cap: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="SHOWS SECONDS", help="Show each of them so often within so long to one user, at most."),
    ] = None,
    party: Party = "",
    json: AsJson = False,
) -> None:
    """Offer new items, or offer retired ones again; `import` changes those on offer."""
    from hushstream.client import Item
    from hushstream.engine.catalogue import Cap

    if len(items) > 1 and (title or features):
        raise HushstreamError(f"--title, --features: expected one item with them, got {len(items)}; see items import")
    values = _object(features, "features") if features else {}
    offered = [Item(one, title, values, pinned=pinned, cap=None if cap is None else Cap(*cap)) for one in items]

    async def send(catalogue: Items) -> tuple[int, list[Item | None]]:
        return await catalogue.add_all(offered), [catalogue.find(one) for one in items]

    version, added = _with(place, party, send)
    lines = [f"{one.item}: offered since version {one.since} of the catalogue" for one in added if one is not None]
    show({"items": items, "version": version}, json, *lines)


@as_client
def retire(place: Place, item: ItemId, party: Party = "", json: AsJson = False) -> None:
    """Stop showing an item; feedback on earlier decisions still counts."""
    version = _with(place, party, lambda items: items.retire(item))
    show({"item": item, "version": version}, json, f"{item}: retired since version {version} of the catalogue")


@as_client
def import_items(
    place: Place,
    file: Annotated[
        str,
        typer.Argument(
            help="One JSON object a line, as `export` writes (- reads stdin); or a table, NAME.csv: its columns are "
            "item and, if any, title, pinned, cap.shows, cap.within_seconds and declared features."
        ),
    ],
    party: Party = "",
    json: AsJson = False,
) -> None:
    """Offer all items of a file as it has them: new, back again or changed; if any line is faulty, nothing is sent."""
    lines = (sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8-sig")).splitlines()
    table = file.lower().endswith(_TABLE)

    async def send(items: Items) -> Put:
        await items.refresh()
        return await items.put(_rows_of(lines, items.features) if table else _items_of(lines))

    found = _with(place, party, send)
    counts = ", ".join(f"{count} {name}" for name, count in list(found._asdict().items())[1:] if count)
    show(found._asdict(), json, f"Items: {counts or 'none'}; version {found.version} of the catalogue")


@as_client
def export(place: Place, party: Party = "") -> None:
    """Print the offered items, one JSON object on each line."""
    for one in _with(place, party, lambda items: items.list()):
        if one.offered:
            typer.echo(dumps(_said(one), ensure_ascii=False))


def _with(place: Place, party: str, act: Callable[[Items], Awaitable[Any]]) -> Any:
    """Run ``act`` with the catalogue of a client of the deployment."""
    from hushstream.client import connect

    broker = place.connection
    client = connect(broker.bootstrap, place.folder, prefix=broker.prefix, security=broker.security, party=party)

    async def run() -> Any:
        async with client:
            return await act(client.items)

    return asyncio.run(run())


def _items_of(lines: Iterable[str]) -> Iterator[Item]:
    from hushstream.client import Item
    from hushstream.engine.catalogue import Cap

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        values = _object(line, f"line {number}")
        if not values.keys() <= _KEYS or "item" not in values:
            raise HushstreamError(f"line {number}: expected item and, if any, {_OTHERS}, got other keys")
        cap = values.pop("cap", None)
        if cap is not None and not (isinstance(cap, dict) and set(cap) == set(Cap._fields)):
            raise HushstreamError(f"line {number}: expected a cap of {' and '.join(Cap._fields)}, got another")
        yield Item(**values, cap=None if cap is None else Cap(**cap))


def _rows_of(lines: Sequence[str], features: FeatureSchema | None) -> Iterator[Item]:
    """Read the items of a CSV table; an empty cell means no value."""
    from hushstream.client import Item
    from hushstream.engine.catalogue import Cap
    from hushstream.replay.logged.values import READERS, WrongValue

    declared = {} if features is None else features.features
    rules = {"pinned": "boolean", **dict.fromkeys((f"cap.{name}" for name in Cap._fields), "number")}
    kinds = dict.fromkeys(("item", "title"), "category") | rules | {name: one.kind for name, one in declared.items()}
    rows = DictReader(lines)
    if not kinds.keys() >= set(rows.fieldnames or ()) >= {"item"}:
        raise HushstreamError(f"line 1: expected item and, if any, {', '.join(list(kinds)[1:])}, got other columns")
    for row in rows:
        if None in row or None in row.values():
            raise HushstreamError(
                f"line {rows.line_num}: expected {len(rows.fieldnames or ())} cells, got another number"
            )
        values = {}
        for name, cell in row.items():
            try:
                values[name] = READERS[kinds[name]](cell)
            except WrongValue as error:
                raise HushstreamError(f"line {rows.line_num}, column {name}: expected {error}, got another") from None
        given = {name: value for name, value in values.items() if value is not None}
        item, title = given.pop("item", ""), given.pop("title", "")
        limits = [given.pop(f"cap.{name}", None) for name in Cap._fields]
        pinned = "pinned" not in declared and given.pop("pinned", False)
        cap = (
            None if limits == [None, None] else Cap(*(int(one) if one and one.is_integer() else one for one in limits))
        )
        yield Item(item, title, given, pinned=pinned, cap=cap)


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        values = loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise HushstreamError(f"{where}: expected a JSON object, got other text")
    return values


def _said(one: Item) -> dict[str, Any]:
    rules = {**({"pinned": True} if one.pinned else {}), **({"cap": one.cap._asdict()} if one.cap else {})}
    return {"item": one.item, "title": one.title, "features": dict(one.features), **rules}
