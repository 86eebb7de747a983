"""The catalogue of a deployment whose items have names, from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hushstream.agents.worker.deployment import prepare, read_config
from hushstream.features.schema import declare
from hushstream.systems.p2b.model_file import ExportedFeatures

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
release: {form: features}
"""
GIVEN = [
    {"item": "boots", "title": "Winter boots", "features": {"colour": "red"}},
    {"item": "sandals", "title": "", "features": {}},
]

NEW = {"tent": 1, "novel": 2}


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
    assert told.json == {"offered": 2, "already": 0, "version": 2}
    assert cli("items", "import", folder / "items.jsonl", *place, "--json").json["already"] == 2
    assert "socks: offered since version 3" in cli("items", "add", "socks", "--title", "Socks", *place).out
    assert "3 of 3 with items (capacity)" in refused("items", "add", "hats", *place)
    assert "got one that is" in refused("items", "add", "socks", *place)
    assert "sandals: retired since version 4" in cli("items", "retire", "sandals", *place).out
    assert "the first is free in" in refused("items", "add", "hats", *place)
    listed = cli("items", "list", *place, "--json").json
    assert [(one["item"], one["offered"]) for one in listed] == [("boots", True), ("sandals", False), ("socks", True)]
    exported = [json.loads(line) for line in cli("items", "export", *place).out.splitlines()]
    assert exported == [GIVEN[0], {"item": "socks", "title": "Socks", "features": {}}]


def test_several_items_are_offered_at_once(cli, bootstrap, folder):
    place = ("-d", folder / "deployment", "--bootstrap", bootstrap, "--prefix", "several.")
    assert cli("topics", "apply", *place).code == 0
    told = cli("items", "add", "boots", "Winter socks", *place, "--json")
    assert told.json == {"items": ["boots", "Winter socks"], "version": 2}
    assert [one["item"] for one in cli("items", "list", *place, "--json").json] == ["boots", "Winter socks"]


def test_add_retire_and_list_name_one_version_since_which_an_item_is_offered_or_retired(cli, bootstrap, folder):
    """An item that was offered again was listed with the version of its first offer."""
    place = ("-d", folder / "deployment", "--bootstrap", bootstrap, "--prefix", "since.")
    assert cli("topics", "apply", *place).code == 0

    def listed():
        return [line.replace("  -  ", ": ") for line in cli("items", "list", *place).out.splitlines()]

    added = cli("items", "add", "tent", "novel", *place).out.splitlines()
    assert added == [f"{item}: offered since version {version} of the catalogue" for item, version in NEW.items()]
    assert listed() == ["tent: offered, since version 1", "novel: offered, since version 2"]
    assert cli("items", "retire", "tent", *place).out == "tent: retired since version 3 of the catalogue\n"
    assert listed() == ["tent: retired, since version 3", "novel: offered, since version 2"]
    assert cli("items", "add", "tent", *place).out == "tent: offered since version 4 of the catalogue\n"
    assert listed() == ["tent: offered, since version 4", "novel: offered, since version 2"]
    tent, _ = cli("items", "list", *place, "--json").json
    assert (tent["version"], tent["since"]) == (1, 4), "its row, and what was learned in it, is still its first one"


def test_items_of_the_model_that_a_deployment_begins_with_are_named_until_they_are_added(
    cli, refused, bootstrap, folder
):
    schema = declare({"country": {"kind": "category", "vocabulary": ["de", "fr"]}})
    paid = {"epsilon_micro": 1_000_000, "delta_units": "0"}
    about = {"deployment": "before", "version": 2, "slots": 800.0, "reward_variance": 0.2}
    about |= {"paid": {"which": paid, "took_part": paid}}
    means = np.full((2, schema.cells + 1), 0.1)
    model = ExportedFeatures(about, ("boots", "sunhat"), (), schema, means, means)
    (folder / "model.json").write_bytes(model.as_json())
    made = folder / "started"
    said = cli("prepare", folder / "shop.yaml", made, "--start", folder / "model.json")
    assert said.code == 0
    guarantee = cli("guarantee", made).out
    assert "version 2 of the model of deployment before (800 slots). It knows 2 items by id" in guarantee
    place = ("-d", made, "--bootstrap", bootstrap, "--prefix", "started.")
    assert cli("topics", "apply", *place).code == 0
    assert cli("items", "add", "socks", "boots", *place).out.splitlines() == [
        "socks: offered since version 3 of the catalogue",
        "boots: offered since version 4 of the catalogue",
    ]
    assert cli("items", "list", *place).out.splitlines() == [
        "boots  -  offered, since version 4",
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
        (("add", "x" * 100_000), "expected an id of 1 to 128 bytes, got 100000"),
        (("add", "hats", "--features", '{"size": 3}'), "expected names among colour"),
        (("add", "hats", "--features", "red"), "features: expected a JSON object"),
        (("retire", "nothing"), "expected one that is offered"),
    ],
)
def test_what_can_never_be_taken_is_refused_before_it_is_sent(refused, bootstrap, folder, arguments, message):
    place = ("-d", folder / "deployment", "--bootstrap", bootstrap)
    assert message in refused("items", *arguments, *place)
