"""Items by command: added, imported, listed, retired and exported, also by a vendor of its own."""

import asyncio
import json

import numpy as np
import pytest

from hushstream.agents.worker.deployment import load, prepare, read_config
from hushstream.client.items import printable
from hushstream.features.schema import declare
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy_async
from hushstream.schemas import codec
from hushstream.systems.p2b.models import ExportedModel

SHOP = """\
system: p2b
deployment: boots
items:
  capacity: 3
  named: true
  features:
    colour: {kind: category, vocabulary: [red, blue]}
features:
  country: {kind: category, vocabulary: [de, fr]}
expected_slots: 1000
release: {form: features, window_units: 1000}
"""
GIVEN = [
    {
        "item": "boots",
        "title": "Winter boots",
        "features": {"colour": "red"},
        "pinned": True,
        "cap": {"shows": 3, "within_seconds": 60},
    },
    {"item": "sandals", "title": "", "features": {}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.yaml").write_text(SHOP, encoding="utf-8")
    prepare(folder / "deployment", read_config(folder / "shop.yaml"))
    (folder / "items.jsonl").write_text("\n".join(map(json.dumps, GIVEN)), encoding="utf-8")
    return folder


def test_items_are_imported_listed_retired_and_exported(cli, refused, bootstrap, folder):
    place = ("-d", folder / "deployment", "--bootstrap", bootstrap)
    assert cli("topics", "apply", *place).code == 0
    told = cli("items", "import", folder / "items.jsonl", *place, "--json")
    assert (told.json["added"], told.json["version"]) == (2, 1)
    assert cli("items", "import", folder / "items.jsonl", *place, "--json").json["unchanged"] == 2
    ruled = ("--title", "Socks", "--cap", "2", "3600")
    assert "socks: offered since version 2" in cli("items", "add", "socks", *ruled, *place).out
    assert "3 of 3 with items: retire one" in refused("items", "add", "hats", *place)
    assert "got socks" in refused("items", "add", "socks", *place)
    assert "sandals: retired since version 3" in cli("items", "retire", "sandals", *place).out
    assert "the first is free in" in refused("items", "add", "hats", *place)
    listed = cli("items", "list", *place, "--json").json
    assert [(one["item"], one["offered"]) for one in listed] == [("boots", True), ("sandals", False), ("socks", True)]
    exported = [json.loads(line) for line in cli("items", "export", *place).out.splitlines()]
    socks = {"item": "socks", "title": "Socks", "features": {}, "cap": {"shows": 2, "within_seconds": 3600}}
    assert exported == [GIVEN[0], socks]
    said = cli("items", "list", *place).out.splitlines()
    assert said[0] == "boots  Winter boots  offered, since version 1, pinned, at most 3 in 60 s for a user"


def test_several_items_are_offered_at_once(cli, bootstrap, folder):
    place = ("-d", folder / "deployment", "--bootstrap", bootstrap, "--prefix", "several.")
    assert cli("topics", "apply", *place).code == 0
    told = cli("items", "add", "boots", "Winter socks", *place, "--json")
    assert told.json == {"items": ["boots", "Winter socks"], "version": 1}
    assert [one["item"] for one in cli("items", "list", *place, "--json").json] == ["boots", "Winter socks"]


def test_add_retire_and_list_name_one_version_since_which_an_item_is_offered_or_retired(cli, bootstrap, folder):
    """An item that was offered again was listed with the version of its first offer."""
    place = ("-d", folder / "deployment", "--bootstrap", bootstrap, "--prefix", "since.")
    assert cli("topics", "apply", *place).code == 0

    def listed():
        return [line.replace("  -  ", ": ") for line in cli("items", "list", *place).out.splitlines()]

    added = cli("items", "add", "tent", "novel", *place).out.splitlines()
    assert added == [f"{item}: offered since version 1 of the catalogue" for item in ("tent", "novel")]
    assert listed() == ["tent: offered, since version 1", "novel: offered, since version 1"]
    assert cli("items", "retire", "tent", *place).out == "tent: retired since version 2 of the catalogue\n"
    assert listed() == ["tent: retired, since version 2", "novel: offered, since version 1"]
    assert cli("items", "add", "tent", *place).out == "tent: offered since version 3 of the catalogue\n"
    assert listed() == ["tent: offered, since version 3", "novel: offered, since version 1"]
    tent, _ = cli("items", "list", *place, "--json").json
    assert (tent["version"], tent["since"]) == (1, 3), "its row, and what was learned in it, is still its first one"


def test_items_of_the_model_that_a_deployment_begins_with_are_named_until_they_are_added(
    cli, refused, bootstrap, folder
):
    schema = declare({"country": {"kind": "category", "vocabulary": ["de", "fr"]}})
    paid = {"epsilon_micro": 1_000_000, "delta_units": "0"}
    about = {"deployment": "before", "private_as_stated": True, "version": 2, "slots": 800.0, "reward_variance": 0.2}
    about |= {"paid": {"which": paid, "zero_out": paid}}
    means = np.full((2, schema.cells + 1), 0.1)
    model = ExportedModel(about, ("boots", "sunhat"), (), schema, means, means)
    (folder / "model.json").write_bytes(model.as_json())
    made = folder / "started"
    said = cli("prepare", folder / "shop.yaml", made, "--start", folder / "model.json")
    assert said.code == 0
    guarantee = cli("guarantee", made, "--details").out
    assert "version 2 of the model of deployment before (800 reports). It knows 2 items by id" in guarantee
    place = ("-d", made, "--bootstrap", bootstrap, "--prefix", "started.")
    assert cli("topics", "apply", *place).code == 0
    assert cli("items", "add", "socks", "boots", *place).out.splitlines() == [
        "socks: offered since version 3 of the catalogue",
        "boots: offered since version 3 of the catalogue",
    ]
    assert cli("items", "list", *place).out.splitlines() == [
        "boots  -  offered, since version 3",
        "socks  -  offered, since version 3",
        "Items of the deployment's initial model that have no row here: sunhat",
    ]
    (last,) = (one for one in cli("items", "list", *place, "--json").json if not one["offered"])
    assert (last["item"], last["version"]) == ("sunhat", 0)
    (folder / "edited.json").write_bytes(model.as_json().replace(b'"slots": 800.0', b'"slots": 8000.0'))
    expected = "expected content with the digest"
    assert expected in refused("prepare", folder / "shop.yaml", folder / "other", "--start", folder / "edited.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "socks", "hats", "--title", "Both"), "expected one item with them, got 2"),
        (("add", "x" * 100_000), "expected an id of 1 to 128 bytes in one line, got 100000"),
        (("add", "hats", "--features", '{"size": 3}'), "expected names among colour"),
        (("add", "hats", "--features", "red"), "features: expected a JSON object"),
        (("add", "hats", "--cap", "0", "60"), "cap: expected 1 to 100 shows within 1 to 31622400 whole seconds"),
        (("retire", "nothing"), "expected one that is offered"),
    ],
)
def test_what_can_never_be_taken_is_refused_before_it_is_sent(refused, bootstrap, folder, arguments, message):
    place = ("-d", folder / "deployment", "--bootstrap", bootstrap)
    assert message in refused("items", *arguments, *place)


MALL = """\
system: pdap
deployment: mall
vendors: [{name: north, items: {capacity: 3, named: true}}, {name: south, items: {capacity: 4, named: true}}]
features: {dimension: 2}
"""


PUT = dict.fromkeys(("version", "added", "changed", "restored", "retired", "unchanged"), 0)


@pytest.fixture(scope="module")
def mall(tmp_path_factory):
    mall = tmp_path_factory.mktemp("mall")
    (mall / "mall.yaml").write_text(MALL, encoding="utf-8")
    prepare(mall / "deployment", read_config(mall / "mall.yaml"))
    return mall / "deployment"


@pytest.fixture(scope="module")
def place(mall, bootstrap):
    return "-d", mall, "--bootstrap", bootstrap


def test_a_vendor_lists_adds_retires_imports_and_exports_items_of_its_own(cli, place, mall, bootstrap, tmp_path):
    assert cli("topics", "apply", *place).code == 0
    south = ("--party", "south", *place)
    assert cli("items", "add", "hat", "bag", *south, "--json").json == {"items": ["hat", "bag"], "version": 1}
    assert "hat: retired since version 2" in cli("items", "retire", "hat", *south).out
    listed = cli("items", "list", *south, "--json").json
    assert [(one["item"], one["offered"]) for one in listed] == [("hat", False), ("bag", True)]
    exported = cli("items", "export", *south).out
    assert exported == '{"item": "bag", "title": "", "features": {}}\n'
    file = tmp_path / "stock.jsonl"
    file.write_text('{"item": "cap"}\n' + exported, encoding="utf-8")
    assert cli("items", "import", file, *south, "--json").json == PUT | {"version": 3, "added": 1, "unchanged": 1}
    assert all(one["item"] == "pin" for one in cli("items", "list", "--party", "north", *place, "--json").json)
    system = load(mall)
    logs = asyncio.run(copy_async(Connection(bootstrap, "mall."), system.partitions, ["items.south"]))
    records = [codec.decode(record.value)[1] for record in logs.part(("items.south", 0)).records]
    changes = [(one["version"], [(item["item"], item["offered"]) for item in one["items"]]) for one in records]
    assert changes == [(1, [("hat", True), ("bag", True)]), (2, [("hat", False)]), (3, [("cap", True)])]


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
    assert "(item 'bad', change 2 of 2; nothing was sent)" in refused("items", "import", file, *south)
    file.write_text('{"item": "good"}\n{"item": "other", "title": 5}\n', encoding="utf-8")
    assert "(item 'other', change 2 of 2; nothing was sent)" in refused("items", "import", file, *south)
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


def test_2000_items_are_one_change_of_the_catalogue(cli, bootstrap, tmp_path):
    """They were 2,000 versions of a third of a second each."""
    (tmp_path / "store.yaml").write_text(STORE.replace("capacity: 4", "capacity: 2000"), encoding="utf-8")
    prepare(tmp_path / "store", read_config(tmp_path / "store.yaml"))
    place = "-d", tmp_path / "store", "--bootstrap", bootstrap, "--prefix", "many."
    assert cli("topics", "apply", *place).code == 0
    (tmp_path / "stock.csv").write_text("item\n" + "".join(f"i{n}\n" for n in range(2000)), encoding="utf-8")
    told = cli("items", "import", tmp_path / "stock.csv", *place, "--json").json
    assert told == PUT | {"version": 1, "added": 2000}


def test_a_csv_table_is_imported_with_titles_and_features_and_refused_by_line_and_column(
    cli, refused, bootstrap, tmp_path
):
    (tmp_path / "store.yaml").write_text(STORE, encoding="utf-8")
    prepare(tmp_path / "store", read_config(tmp_path / "store.yaml"))
    place = "-d", tmp_path / "store", "--bootstrap", bootstrap
    assert cli("topics", "apply", *place).code == 0
    table = tmp_path / "stock.csv"
    for content, said in (
        (
            "item,colour\nx,red\n",
            "line 1: expected item and, if any, title, pinned, cap.shows, cap.within_seconds, kind, price, got other",
        ),
        ("title\nx\n", "line 1: expected item"),
        ("item,pinned\nx,perhaps\n", "line 2, column pinned: expected"),
        ("item,cap.shows\nx,3\n", "cap: expected 1 to 100 shows"),
        ("item,cap.shows,cap.within_seconds\nx,1.5,60\n", "cap: expected 1 to 100 shows"),
        (
            "item,price\nx,SECRET\n",
            "line 2, column price: expected a number such as 1234.5, without commas or a currency, got another",
        ),
        ("item,price\nx\n", "line 2: expected 2 cells, got another number"),
        ("item,price\nx,1,2\n", "line 2: expected 2 cells, got another number"),
        (
            "item,price\nx,3\n,4\n",
            "an id of 1 to 128 bytes in one line, got 0 (item '', change 2 of 2; nothing was sent)",
        ),
    ):
        table.write_text(content, encoding="utf-8")
        told = refused("items", "import", table, *place)
        assert said in told
        assert "SECRET" not in told
    table.write_text('item,title,price,kind\nx,"A, first",2.5,a\ny,,,b\n', encoding="utf-8")
    assert cli("items", "import", table, *place, "--json").json == PUT | {"version": 1, "added": 2}
    assert cli("items", "export", *place).out.splitlines() == [
        '{"item": "x", "title": "A, first", "features": {"kind": "a", "price": 2.5}}',
        '{"item": "y", "title": "", "features": {"kind": "b"}}',
    ]
    table.write_text("item,pinned,cap.shows,cap.within_seconds\nx,yes,3,86400\ny,no,,\n", encoding="utf-8")
    assert cli("items", "import", table, *place, "--json").json == PUT | {"version": 2, "changed": 2}
    assert cli("items", "export", *place).out.splitlines() == [
        '{"item": "x", "title": "", "features": {}, "pinned": true, "cap": {"shows": 3, "within_seconds": 86400}}',
        '{"item": "y", "title": "", "features": {}}',
    ]
