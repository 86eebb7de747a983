"""The items of vendors by name, from the command line: the words that every catalogue has, of one party each."""

from __future__ import annotations

import asyncio

import pytest

from hushstream.agents.worker.deployment import load, prepare, read_config
from hushstream.client.items import printable
from hushstream.ops.connection import Connection
from hushstream.ops.live import copy_async
from hushstream.schemas import codec

MALL = """\
system: pdap
deployment: mall
vendors: [{name: north, items: {capacity: 3, named: true}}, {name: south, items: {capacity: 4, named: true}}]
features: {dimension: 2}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mall")
    (folder / "mall.yaml").write_text(MALL, encoding="utf-8")
    prepare(folder / "deployment", read_config(folder / "mall.yaml"))
    return folder / "deployment"


@pytest.fixture(scope="module")
def place(folder, bootstrap):
    return "-d", folder, "--bootstrap", bootstrap


def test_a_vendor_lists_adds_retires_imports_and_exports_items_of_its_own(cli, place, folder, bootstrap, tmp_path):
    assert cli("topics", "apply", *place).code == 0
    south = ("--party", "south", *place)
    assert cli("items", "add", "hat", "bag", *south, "--json").json == {"items": ["hat", "bag"], "version": 2}
    assert "hat: retired since version 3" in cli("items", "retire", "hat", *south).out
    listed = cli("items", "list", *south, "--json").json
    assert [(one["item"], one["offered"]) for one in listed] == [("hat", False), ("bag", True)]
    exported = cli("items", "export", *south).out
    assert exported == '{"item": "bag", "title": "", "features": {}}\n'
    file = tmp_path / "stock.jsonl"
    file.write_text('{"item": "cap"}\n' + exported, encoding="utf-8")
    assert cli("items", "import", file, *south, "--json").json == {"offered": 1, "already": 1, "version": 4}
    assert all(one["item"] == "pin" for one in cli("items", "list", "--party", "north", *place, "--json").json)
    system = load(folder)
    logs = asyncio.run(copy_async(Connection(bootstrap, "mall."), system.partitions, ["items.south"]))
    records = [codec.decode(record.value)[1] for record in logs.part(("items.south", 0)).records]
    assert [(fields["item"], fields["version"], fields["offered"]) for fields in records] == [
        ("hat", 1, True),
        ("bag", 2, True),
        ("hat", 3, False),
        ("cap", 4, True),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "pin", "pin", "--party", "north"), "expected an id that is not offered at version"),
        (("add", "a\x1b[2J", "--party", "north"), "in one line, got a control character"),
        (("add", "a", "--title", "hat\nboots", "--party", "north"), "in one line, got a control character"),
        (("retire", "boots", "--party", "south"), "item: expected one that is offered at version"),
        (("add", "a", "b", "c", "d", "--party", "north"), "no row is reused here, got 3 of 3 that have or had"),
        (("add", "hat", "--features", '{"colour": "red"}', "--party", "south"), "`items.features` declares none"),
        (("add", "x" * 1000, "--party", "south"), "item: expected an id of 1 to 128 bytes"),
        (("list", "--party", "east"), "expected one of its parties (north, south), got east"),
        (("list",), "north, south"),
    ],
)
def test_what_a_vendors_catalogue_cannot_take_is_refused_by_name(cli, refused, place, arguments, message):
    assert cli("topics", "apply", *place).code == 0
    assert message in refused("items", *arguments, *place)


def test_nothing_is_sent_of_items_one_of_which_cannot_be_added(cli, refused, place, tmp_path):
    assert cli("topics", "apply", *place).code == 0
    south = ("--party", "south", *place)
    before = cli("items", "list", *south).out
    file = tmp_path / "stock.jsonl"
    file.write_text('{"item": "good"}\n{"item": "bad", "features": {"colour": "red"}}\n', encoding="utf-8")
    assert "(change 2 of 2; nothing was sent)" in refused("items", "import", file, *south)
    file.write_text('{"item": "good"}\n{"item": "other", "title": 5}\n', encoding="utf-8")
    assert "got something else (change 2 of 2; nothing was sent)" in refused("items", "import", file, *south)
    assert cli("items", "list", *south).out == before


def test_control_characters_of_another_writers_item_are_printed_as_escapes():
    assert printable("a\x1b[2J\x85\u2028é b") == "a\\x1b[2J\\x85\\u2028é b"


STORE = """\
deployment: store
items:
  capacity: 4
  named: true
  features: {kind: {kind: category, vocabulary: [a, b]}, price: {kind: number, range: [1, 9]}}
features: {vip: {kind: boolean}}
expected_slots: 100
"""


def test_a_csv_table_is_imported_with_titles_and_features_and_refused_by_line_and_column(
    cli, refused, bootstrap, tmp_path
):
    (tmp_path / "store.yaml").write_text(STORE, encoding="utf-8")
    prepare(tmp_path / "store", read_config(tmp_path / "store.yaml"))
    place = "-d", tmp_path / "store", "--bootstrap", bootstrap
    assert cli("topics", "apply", *place).code == 0
    table = tmp_path / "stock.csv"
    for content, said in (
        ("item,colour\nx,red\n", "line 1: expected item and, if any, title, kind, price, got other columns"),
        ("title\nx\n", "line 1: expected item"),
        ("item,price\nx,SECRET\n", "line 2, column price: expected a number, got another"),
        ("item,price\nx\n", "line 2: expected 2 cells, got another number"),
        ("item,price\nx,1,2\n", "line 2: expected 2 cells, got another number"),
        ("item,price\nx,3\n,4\n", "an id of 1 to 128 bytes, got 0 (change 2 of 2; nothing was sent)"),
    ):
        table.write_text(content, encoding="utf-8")
        told = refused("items", "import", table, *place)
        assert said in told
        assert "SECRET" not in told
    table.write_text('item,title,price,kind\nx,"A, first",2.5,a\ny,,,b\n', encoding="utf-8")
    assert cli("items", "import", table, *place, "--json").json == {"offered": 2, "already": 0, "version": 2}
    assert cli("items", "export", *place).out.splitlines() == [
        '{"item": "x", "title": "A, first", "features": {"kind": "a", "price": 2.5}}',
        '{"item": "y", "title": "", "features": {"kind": "b"}}',
    ]


@pytest.mark.parametrize("former", ["withdraw", "offer"])
def test_the_words_of_before_are_refused_with_those_of_now(refused, former):
    said = refused("item", former, "3", "--party", "south", "-d", "nowhere")
    assert "are now `hushstream items retire` and `hushstream items add`" in said
