"""The items of vendors by name, from the command line: the words that every catalogue has, of one party each."""

from __future__ import annotations

import asyncio

import pytest

from hushstream.agents.worker.deployment import load, prepare, read_config
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
        (("add", "pin", "pin", "--party", "north"), "expected an id that version"),
        (("retire", "boots", "--party", "south"), "item: expected one that is offered at version"),
        (("add", "a", "b", "c", "d", "--party", "north"), "none is used again here, got 3 of 3 that have or had"),
        (("add", "hat", "--features", '{"colour": "red"}', "--party", "south"), "`items.features` declares none"),
        (("add", "x" * 1000, "--party", "south"), "item: expected an id of 1 to 128 bytes"),
        (("list", "--party", "east"), "expected one of its parties (north, south), got east"),
        (("list",), "north, south"),
    ],
)
def test_what_a_vendors_catalogue_cannot_take_is_refused_by_name(cli, refused, place, arguments, message):
    assert cli("topics", "apply", *place).code == 0
    assert message in refused("items", *arguments, *place)


@pytest.mark.parametrize("former", ["withdraw", "offer"])
def test_the_words_of_before_are_refused_with_those_of_now(refused, former):
    said = refused("item", former, "3", "--party", "south", "-d", "nowhere")
    assert "are now `hushstream items retire` and `hushstream items add`" in said
